"""Run a vendor's tool with a timeout and bounded output, and read values in it: numbers, quantities with units, JSON.

A tool may hang, flood, fail or exit at any time.
"""

import os
import selectors
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import orjson

from conch.base.process.prctl import die_with_parent
from conch.machine.accelerators.collectors import AcceleratorAbsent, CollectorError

DEFAULT_TIMEOUT_S = 10.0
MAX_OUTPUT_BYTES = 4 << 20
MAX_LINES = 256
_READ_BYTES = 1 << 16
# A killed tool that hangs in the driver exits only when the driver returns; it is not awaited for longer.
_EXIT_TIMEOUT_S = 1.0


def find_tool(program: str) -> str:
    """Return the path of a program. Raises AcceleratorAbsent if it is not on PATH."""
    path = shutil.which(program)
    if path is None:
        raise AcceleratorAbsent(f"'{program}' is not on PATH")
    return path


def run_tool(program: str, *arguments: str, timeout_s: float = DEFAULT_TIMEOUT_S, folder: Path | None = None) -> bytes:
    """Return what the program writes to standard output.

    Raises AcceleratorAbsent if it is not on PATH, CollectorError if it fails, takes longer than `timeout_s` or writes
    more than `MAX_OUTPUT_BYTES`; then it is killed with its children.
    """
    name = " ".join((program, *arguments))
    process = _start((find_tool(program), *arguments), name, subprocess.PIPE, folder)
    try:
        output, error = _read(process, name, monotonic() + timeout_s, timeout_s)
    finally:
        _stop(process)
    if process.returncode:
        lines = (error.strip() or output.strip()).decode(errors="replace").splitlines()
        cause = f": {lines[-1][:200]}" if lines else ""
        raise CollectorError(f"{name} {_exit_text(process.returncode)}{cause}")
    return output


class ToolStream:
    """A tool that writes one line per report for as long as it runs. A thread keeps the latest lines.

    A tool that exits is restarted by the next call of `lines`.
    """

    def __init__(self, program: str, *arguments: str) -> None:
        self._command = (program, *arguments)
        self._name = " ".join(self._command)
        self._process: subprocess.Popen[bytes] | None = None
        self._changed = threading.Condition()
        self._lines = deque[bytes](maxlen=MAX_LINES)
        self._unread_bytes = 0
        self._read_at = 0.0
        self._fault = ""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the tool. Raises AcceleratorAbsent if it is not on PATH."""
        command = (find_tool(self._command[0]), *self._command[1:])
        self._process = _start(command, self._name, subprocess.DEVNULL, None)
        self._lines.clear()
        self._unread_bytes, self._read_at, self._fault = 0, monotonic(), ""
        self._thread = threading.Thread(target=self._receive, args=(self._process,), daemon=True, name=self._name)
        self._thread.start()

    def lines(self, timeout_s: float) -> Sequence[bytes]:
        """Return the complete lines since the last call, at least one.

        Raises CollectorError if there is none within `timeout_s`, or if the tool exited or flooded.
        """
        if self._process is None:
            self.start()
        with self._changed:
            ready = self._changed.wait_for(lambda: bool(self._lines or self._fault), timeout_s)
            lines, fault = list(self._lines), self._fault
            self._lines.clear()
            self._unread_bytes, self._read_at = 0, monotonic()
        if lines and not fault:
            return lines
        if not ready:
            fault = f"wrote no report within {timeout_s:g} s"
        self.close()
        raise CollectorError(f"{self._name} {fault}; restarting it with the next sample")

    def close(self) -> None:
        """Kill the tool."""
        process, self._process = self._process, None
        if process is not None:
            _stop(process, close=False)
            if self._thread is not None:
                self._thread.join(_EXIT_TIMEOUT_S)

    def _receive(self, process: subprocess.Popen[bytes]) -> None:
        """Read lines until the tool exits or floods. Runs in the stream's thread."""
        assert process.stdout is not None
        pending = bytearray()
        fault = ""
        with process.stdout as output:
            while chunk := os.read(output.fileno(), _READ_BYTES):
                pending += chunk
                *complete, rest = pending.split(b"\n")
                pending = bytearray(rest)
                with self._changed:
                    self._unread_bytes += len(chunk)
                    self._lines += [bytes(line) for line in complete if line.strip()]
                    elapsed_s = 1 + monotonic() - self._read_at
                    if self._unread_bytes > MAX_OUTPUT_BYTES * elapsed_s:
                        fault = f"wrote more than {MAX_OUTPUT_BYTES >> 20} MiB/s"
                    self._changed.notify_all()
                if fault or len(pending) > MAX_OUTPUT_BYTES:
                    fault = fault or f"wrote a line of more than {MAX_OUTPUT_BYTES >> 20} MiB"
                    _kill(process)
                    break
        with suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_TIMEOUT_S)
        with self._changed:
            self._fault = fault or _exit_text(process.returncode)
            self._changed.notify_all()


def _start(command: Sequence[str], name: str, error: int, folder: Path | None) -> "subprocess.Popen[bytes]":
    # Its own process group, so that its children are killed with it.
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=error,
            env=environment,
            cwd=folder,
            process_group=0,
            preexec_fn=die_with_parent,
        )
    except OSError as failure:
        raise CollectorError(f"{name} cannot be run: {failure.strerror}") from failure


def _read(process: "subprocess.Popen[bytes]", name: str, deadline: float, timeout_s: float) -> tuple[bytes, bytes]:
    """Return standard output and standard error."""
    assert process.stdout is not None
    assert process.stderr is not None
    output, error = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(process.stderr, selectors.EVENT_READ, error)
        while selector.get_map():
            left = deadline - monotonic()
            if left <= 0:
                raise CollectorError(f"{name} did not finish within {timeout_s:g} s")
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, _READ_BYTES)
                if not chunk:
                    selector.unregister(key.fileobj)
                key.data.extend(chunk)
                if len(output) + len(error) > MAX_OUTPUT_BYTES:
                    raise CollectorError(f"{name} wrote more than {MAX_OUTPUT_BYTES >> 20} MiB")
    try:
        process.wait(max(deadline - monotonic(), 0.1))
    except subprocess.TimeoutExpired as failure:
        raise CollectorError(f"{name} did not finish within {timeout_s:g} s") from failure
    return bytes(output), bytes(error)


def _stop(process: "subprocess.Popen[bytes]", *, close: bool = True) -> None:
    _kill(process)
    for pipe in (process.stdout, process.stderr) if close else ():
        if pipe is not None:
            pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_TIMEOUT_S)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the tool and what it left in its process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _exit_text(status: int | None) -> str:
    if status is None:
        return "closed its output"
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"


MEBIBYTE = float(1 << 20)
MEGAHERTZ = 1e6
PERCENT = 0.01

# What tools write for a value that the device does not have.
_NOT_AVAILABLE = {"", "-", "--", "n/a", "na", "nan", "none", "null", "not supported", "unsupported", "/"}
# Factors to base units. The tools' MB and KB are binary.
_UNITS = {"MB": MEBIBYTE, "MiB": MEBIBYTE, "KB": 1024.0, "GB": float(1 << 30), "MHz": MEGAHERTZ, "%": PERCENT}


def number(value: object) -> float | None:
    """Return a number or None if the value is not available. Raises ValueError if it is neither."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a number")
    text = value.strip()
    return None if text.lower() in _NOT_AVAILABLE else float(text)


def quantity(value: object) -> float | None:
    """Return `{"value": 3, "unit": "MB"}` in base units, or None if it is not available."""
    if not isinstance(value, dict):
        return number(value)
    amount = number(value.get("value"))
    return None if amount is None else amount * _UNITS.get(str(value.get("unit")), 1.0)


def scaled(value: float | None, factor: float) -> float | None:
    """Return the value times the factor, None for None."""
    return None if value is None else value * factor


def item(document: object, *path: str) -> Any:
    """Return what stands at a path of keys, or None if it is missing or, like "N/A", not an object."""
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def parse_json(tool: str, output: bytes) -> Any:
    """Return JSON. Raises CollectorError that names the tool and the line."""
    try:
        return orjson.loads(output)
    except orjson.JSONDecodeError as error:
        lines = output.decode(errors="replace").splitlines() or [""]
        line = lines[min(error.lineno, len(lines)) - 1]
        raise CollectorError(f"{tool}: line {error.lineno}: not JSON ({error.msg}): {line[:120]!r}") from error


def malformed(tool: str, number: int, line: str) -> CollectorError:
    """Return the error for a line that cannot be read."""
    return CollectorError(f"{tool}: line {number}: malformed: {line.strip()[:120]!r}")
