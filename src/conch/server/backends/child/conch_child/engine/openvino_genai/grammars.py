"""Compile structured output specifications in separate processes before OpenVINO GenAI uses them.

OpenVINO GenAI compiles a JSON schema, regular expression or grammar within the step that computes the first token, for
all requests together, and an invalid one leaves its pipeline unusable. `grammar_probe.py` therefore compiles each
first; one that fails, crashes it or exceeds the time limit is refused.

Clients take turns, and one process stays for structures that compile quickly: one that does not is aborted there, and
compiled again by the others.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import sys
import time
from collections import OrderedDict, deque
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Callable, Optional, Union

# For the first structure of a process, which it starts with.
_START_TIMEOUT_S = 60.0
# Limits of one structure: of processor time, and of time on a busy machine.
_COMPILE_CPU_S = 3.0
_COMPILE_TIMEOUT_S = 30.0
# Processor time after which a structure is compiled beside others that take long.
_QUICK_CPU_S = 0.5
_PROCESSES = 3
_POLL_S = 0.05
# Structures after which a process is replaced: the library keeps what it has compiled.
_MAX_COMPILED = 1000
_MAX_CACHED = 4096
_MAX_ERROR_CHARACTERS = 1000  # some repeat the structure
_MAX_PENDING = 1024
_MAX_PENDING_OF_CLIENT = 128

Structure = tuple[str, str]  # kind and value of a `conch.domain.generation.StructuredOutput`


class GrammarChecker:
    """Checks structures in threads that talk to probe processes; they start as structures come."""

    def __init__(self) -> None:
        self._results: OrderedDict[bytes, str] = OrderedDict()
        self._pending: dict[bytes, str] = {}  # the client of each
        self._turns = _Turns()
        self._compiled: SimpleQueue[tuple[bytes, str]] = SimpleQueue()
        self._threads = 0

    def check(self, structure: Structure, client: str = "") -> Union[str, None]:
        """Return a structure's error, "" if it is valid, None while it is being compiled, in the client's turn."""
        while not self._compiled.empty():
            compiled, error = self._compiled.get()
            self._pending.pop(compiled, None)
            self._results[compiled] = error[:_MAX_ERROR_CHARACTERS]
            if len(self._results) > _MAX_CACHED:
                self._results.popitem(last=False)
        key = hashlib.sha256("\0".join(structure).encode("utf-8", "surrogatepass")).digest()
        if key in self._results:
            self._results.move_to_end(key)
            return self._results[key]
        if key not in self._pending:
            of_client = sum(other == client for other in self._pending.values())
            if of_client >= _MAX_PENDING_OF_CLIENT or len(self._pending) >= _MAX_PENDING:
                return "too many other structures are being compiled"
            self._pending[key] = client
            self._turns.put(_Work(key, structure, client))
            if self._threads < min(_PROCESSES, len(self._pending)):
                self._threads += 1
                Thread(target=self._run, name=f"grammars {self._threads}", daemon=True).start()
        return None

    # ---- the threads

    def _run(self) -> None:
        probe: Union[_Probe, None] = None
        while True:
            work = self._turns.get()
            try:
                probe = probe or _Probe()
                error = probe.compile(work.structure, partial(self._turns.may_continue, work))
            except OSError as cause:
                error = f"the compiling process failed: {cause}"
            if probe is not None and not probe.alive:
                probe = None
            if self._turns.done(work, again=error is None):
                self._compiled.put((work.key, error or ""))


class _Work:
    """A structure to compile. `slow`: it takes longer than `_QUICK_CPU_S`."""

    def __init__(self, key: bytes, structure: Structure, client: str) -> None:
        self.key = key
        self.structure = structure
        self.client = client
        self.slow = False
        self.began = 0.0


class _Turns:
    """Decides which structure is next: that of the client that has used the least time. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[_Work]] = {}
        self._used_s: dict[str, float] = {}  # of clients with structures that wait or run
        self._running: dict[str, int] = {}
        self._slow = 0  # structures that are compiled and take long
        self._changed = Condition()

    def put(self, work: _Work) -> None:
        """Queue a structure."""
        with self._changed:
            if work.client not in self._used_s:  # no credit for the time before
                self._used_s[work.client] = min(self._used_s.values(), default=0.0)
            self._waiting.setdefault(work.client, deque()).append(work)
            self._changed.notify()

    def get(self) -> _Work:
        """Return the next structure to compile, which the caller passes to `done`."""
        with self._changed:
            while True:
                work = self._next()
                if work is not None:
                    break
                self._changed.wait()
            work.began = time.monotonic()
            self._slow += work.slow
            self._running[work.client] = self._running.get(work.client, 0) + 1
            return work

    def may_continue(self, work: _Work) -> bool:
        """Count a structure that takes long. Returns False if as many of them are compiled as may be."""
        with self._changed:
            if work.slow:
                return True
            work.slow = True
            if self._slow < _PROCESSES - 1:
                self._slow += 1
                return True
            self._slow += 1  # until `done`
            return False

    def done(self, work: _Work, *, again: bool) -> bool:
        """Count the time of a structure, and queue it if it is to be compiled again. Returns whether it is not."""
        with self._changed:
            client = work.client
            self._used_s[client] += time.monotonic() - work.began
            self._slow -= work.slow
            self._running[client] -= 1
            if again:
                self._waiting.setdefault(client, deque()).append(work)
            elif not self._running[client] and client not in self._waiting:
                del self._used_s[client], self._running[client]
            self._changed.notify_all()
            return not again

    def _next(self) -> Optional[_Work]:
        for client in sorted(self._waiting, key=self._used_s.__getitem__):
            works = self._waiting[client]
            for position, work in enumerate(works):
                if not work.slow or self._slow < _PROCESSES - 1:
                    del works[position]
                    if not works:
                        del self._waiting[client]
                    return work
        return None


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
        self._clock = ~self._process.pid << 3 | 2  # of the process' time: see clock_getcpuclockid(3)
        self._started = False
        self._compiled = 0

    @property
    def alive(self) -> bool:
        """Whether the process is still running."""
        return self._process.poll() is None

    def compile(self, structure: Structure, may_continue: Callable[[], bool]) -> Optional[str]:
        """Return a structure's error, "" if it is valid. Ends the process on a timeout.

        `may_continue` is called once if it takes long; if it returns False, the process ends and the result is None.
        """
        process = self._process
        assert process.stdin is not None
        if not self._started and not self._readable(_START_TIMEOUT_S):
            return self._killed(f"the compiling process takes more than {_START_TIMEOUT_S:g} s to start")
        if not self._started and not self._line():
            return self._exited()
        self._started = True
        began, began_cpu = time.monotonic(), self._cpu_s()
        process.stdin.write(json.dumps(structure).encode() + b"\n")
        process.stdin.flush()
        asked = False
        while not self._readable(_POLL_S):
            cpu_s = self._cpu_s() - began_cpu
            if cpu_s > _COMPILE_CPU_S or time.monotonic() - began > _COMPILE_TIMEOUT_S:
                return self._killed(f"it takes more than {_COMPILE_CPU_S:g} s to compile")
            if cpu_s > _QUICK_CPU_S and not asked:
                asked = True
                if not may_continue():
                    return self._killed(None)
        line = self._line()
        if not line:
            return self._exited()
        self._compiled += 1
        if self._compiled >= _MAX_COMPILED:
            self._killed(None)
        error: str = json.loads(line)
        return error

    def _readable(self, timeout_s: float) -> bool:
        """Whether the process answers, or exits, within the time."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], timeout_s)[0])

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _cpu_s(self) -> float:
        """Return the processor time of the process in seconds."""
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # it has exited
            return 0.0

    def _killed(self, error: Optional[str]) -> Optional[str]:
        self._process.kill()
        self._exited()
        return error

    def _exited(self) -> str:
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        return f"the compiling process exited with status {status}"
