"""A real `conch serve` in a separate process, on ports that the system chooses."""

import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
_LISTENING = {
    "http": re.compile(r"Started HTTPService at \S*:(\d+)"),
    "grpc": re.compile(r"Started GRPCInferenceService at \S*:(\d+)"),
    "metrics": re.compile(r"Started Metrics Service at \S*:(\d+)"),
}


class LoggedProcess:
    """A server's process with its log. At the end of a `with` statement it stops with status 0."""

    log: Path
    process: subprocess.Popen[bytes]

    @property
    def text(self) -> str:
        """The log so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(how)
        try:
            return self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = self.stop() if self.process.poll() is None else self.process.returncode
        if error is None:
            assert status == 0, f"exit status {status}\n{self.text}"


class ConchProcess(LoggedProcess):
    """Use as a context manager: inside, the server is ready; at the end it has stopped with status 0."""

    def __init__(
        self,
        repository: Path,
        *flags: str,
        log: Path,
        wait: str = "ready",
        descriptors: int | None = None,
        start_limit_s: float = START_TIMEOUT_S,
        command: Sequence[str] = (sys.executable, "-m", "conch", "serve"),
    ) -> None:
        """Assign. `descriptors` is how many files the server may have open."""
        self.log = log
        self._command = command
        self._start_limit_s = start_limit_s
        self._prepare = _limited_to(descriptors) if descriptors else None
        self._wait = wait
        self.flags = [
            f"--model-repository={repository}",
            *(f"--{name}-port=0" for name in _LISTENING),
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            # Tests look into the server by /proc, which is for root only else.
            *(["--process-debugging=true"] if os.geteuid() else []),
            *flags,
        ]
        self.ports: dict[str, int] = {}

    @property
    def http(self) -> str:
        """`host:port`, as tritonclient wants it."""
        return f"127.0.0.1:{self.ports['http']}"

    @property
    def grpc(self) -> str:
        """`host:port`, as tritonclient wants it."""
        return f"127.0.0.1:{self.ports['grpc']}"

    def metrics(self) -> str:
        """The exposition of this moment."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['metrics']}/metrics", timeout=60) as response:
            return str(response.read().decode())

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            command = [*self._command, *self.flags]
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=self._prepare)
        try:
            self._find_ports()
            if self._wait:
                self.until(f"/v2/health/{self._wait}")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def until(self, path: str, status: int = 200) -> None:
        """Return when a GET of the path has this status; fail if the server ends or takes too long."""
        deadline = time.monotonic() + self._start_limit_s
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server ended: {self.text}"
            try:
                with urllib.request.urlopen(f"http://{self.http}{path}", timeout=60) as response:
                    got = response.status
            except urllib.error.HTTPError as error:
                got = error.code
            except OSError:
                got = 0
            if got == status:
                return
            time.sleep(0.02)
        raise AssertionError(f"{path} is not {status} after {self._start_limit_s:g} s: {self.text}")

    def until_logged(self, pattern: str) -> None:
        """Return when the log has this in it; fail if the server ends or takes too long."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not re.search(pattern, self.text):
            assert self.process.poll() is None, f"the server ended: {self.text}"
            assert time.monotonic() < deadline, f"no '{pattern}' after {START_TIMEOUT_S} s: {self.text}"
            time.sleep(0.02)

    def _find_ports(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        wanted = [name for name in _LISTENING if f"--allow-{name}=false" not in self.flags]
        while len(self.ports) < len(wanted):
            assert self.process.poll() is None, f"the server ended: {self.text}"
            assert time.monotonic() < deadline, f"no ports after {START_TIMEOUT_S} s: {self.text}"
            text = self.text
            self.ports = {name: int(m[1]) for name in wanted if (m := _LISTENING[name].search(text))}
            time.sleep(0.02)


def waited_for_cpu_s(pid: int) -> float:
    """Return how long this thread and the main thread of a server have been ready to run without a processor.

    What is taken off a duration in which a server must have answered, however busy the machine is. 0 where Linux does
    not count it.
    """
    threads = (Path("/proc/thread-self/schedstat"), Path(f"/proc/{pid}/schedstat"))
    return sum(int(thread.read_text().split()[1]) for thread in threads if thread.exists()) / 1e9


def _limited_to(descriptors: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
