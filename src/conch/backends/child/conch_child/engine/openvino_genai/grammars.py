"""Compile structured output specifications in a separate process before OpenVINO GenAI uses them.

OpenVINO GenAI compiles a JSON schema, regular expression or grammar within the step that computes the first token, for
all requests together, and an invalid one leaves its pipeline unusable. `grammar_probe.py` therefore compiles each
first; one that fails, crashes it or exceeds the timeout is refused.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Union

# For the first structure, which starts the process, and for each later one.
_START_TIMEOUT_S = 60.0
_COMPILE_TIMEOUT_S = 10.0
_MAX_CACHED = 256
_MAX_PENDING = 1024

Structure = tuple[str, str]  # kind and value of a `conch.generation.StructuredOutput`


class GrammarChecker:
    """Checks structures in a thread that talks to the probe process; both start with the first structure."""

    def __init__(self) -> None:
        self._results: OrderedDict[Structure, str] = OrderedDict()
        self._pending: set[Structure] = set()
        self._queue: SimpleQueue[Structure] = SimpleQueue()
        self._compiled: SimpleQueue[tuple[Structure, str]] = SimpleQueue()
        self._thread: Thread | None = None

    def check(self, structure: Structure) -> Union[str, None]:
        """Return a structure's error, "" if it is valid, None while it is being compiled."""
        while not self._compiled.empty():
            compiled, error = self._compiled.get()
            self._pending.discard(compiled)
            self._results[compiled] = error
            if len(self._results) > _MAX_CACHED:
                self._results.popitem(last=False)
        if structure in self._results:
            self._results.move_to_end(structure)
            return self._results[structure]
        if structure not in self._pending:
            if len(self._pending) >= _MAX_PENDING:
                return "too many other structures are being compiled"
            self._pending.add(structure)
            self._queue.put(structure)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="grammars", daemon=True)
                self._thread.start()
        return None

    # ---- the thread

    def _run(self) -> None:
        probe: Union[_Probe, None] = None
        while True:
            structure = self._queue.get()
            try:
                probe = probe or _Probe()
                error = probe.compile(structure)
            except OSError as cause:
                error = f"the compiling process failed: {cause}"
            if probe is not None and not probe.alive:
                probe = None
            self._compiled.put((structure, error))


class _Probe:
    """A process that runs `grammar_probe.py`."""

    def __init__(self) -> None:
        child = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join(filter(None, (child, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "conch_child.engine.openvino_genai.grammar_probe"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the library prints complaints about the state that an error leaves
            env={**os.environ, "PYTHONPATH": path},
        )
        self._timeout_s = _START_TIMEOUT_S

    @property
    def alive(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    def compile(self, structure: Structure) -> str:
        """Return a structure's error, "" if it is valid. Kills the process on a timeout."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(structure).encode() + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], self._timeout_s)
        timeout_s, self._timeout_s = self._timeout_s, _COMPILE_TIMEOUT_S
        line = process.stdout.readline() if ready else b""
        if line:
            error: str = json.loads(line)
            return error
        process.kill()
        status = process.wait()
        if not ready:
            return f"it takes more than {timeout_s:g} s to compile"
        return f"the compiling process exited with status {status}"
