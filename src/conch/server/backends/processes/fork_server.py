"""The server's side of the fork server: a process with the common imports, from which models' processes are forked.

`conch_child/python/fork_server.py` is the other side. The fork server is started ahead of time or by the first launch,
and again when it has exited. The processes that it forks are adopted by this process and do not depend on it.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from conch.base.errors import Code, ModelLoadError
from conch.server.backends import child
from conch.server.backends.child.conch_child.ipc import prctl
from conch.server.backends.child.conch_child.ipc.wire import Message, WireError
from conch.server.backends.processes.launch import ChildEnvironment, Connection, Exit, Launcher, Process

MAIN = Path(child.__file__).with_name("python_main.py")

# Concurrent requests: few enough not to fill the socket, enough to keep the fork server busy.
_MAX_REQUESTS = 8

# It prints little: why it could not start.
_MAX_OUTPUT_BYTES = 1 << 14
# How often to check, and how long to wait in between, for the exit of a process whose socket is closed.
_EXIT_CHECKS, _EXIT_CHECK_INTERVAL_S = 30, 0.01


@dataclass(frozen=True, slots=True)
class _Forked:
    """A process that this one has adopted."""

    pid: int

    def wait(self) -> int:
        """Wait for its exit and return its status, or minus the number of the signal that killed it.

        0 if it was reaped elsewhere, as for a `subprocess.Popen`.
        """
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            return 0


class ForkServer:
    """Launches processes by forking them from a process that it starts. Belongs to one thread.

    `limit_s` is the timeout of a launch: a fork takes milliseconds, but the fork server may have to import from a slow
    disk first. `environment` has the variables of the fork server, and so of the processes of all models. `preload` has
    names of modules that it imports at its start, which those processes then share.
    """

    def __init__(
        self,
        command: Sequence[str] = (sys.executable, str(MAIN), "fork"),
        *,
        limit_s: float = 60.0,
        environment: ChildEnvironment | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        self.environment = environment or ChildEnvironment()
        self._preload = preload
        self._command = command
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._output: FileIO | None = None
        self._slots = asyncio.Semaphore(_MAX_REQUESTS)
        self._launching = 0
        self._adopted_before = False

    @property
    def pid(self) -> int:
        """Process id of the fork server, 0 if it does not run."""
        return self._process.pid if self._process is not None and not _has_ended(self._process) else 0

    def start(self) -> None:
        """Start it unless it runs. Returns before it is ready to fork. Raises ModelLoadError if it cannot be run."""
        if self.pid:
            return
        self.stop()
        try:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                # Not a pipe: it is only read to explain a failure.
                self._output = FileIO(os.memfd_create("conch fork server output", os.MFD_CLOEXEC), "r+")
                self._process = subprocess.Popen(
                    [*self._command, str(theirs.fileno()), *self._preload],
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    env=self.environment.variables(),
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError as error:
            self.stop()
            text = f"cannot run '{self._command[0]}': {error.strerror or error}"
            raise ModelLoadError(text, Code.UNAVAILABLE) from error

    def stop(self) -> None:
        """Kill the fork server if it runs; processes that it has forked continue."""
        if self._process is not None and self._process.returncode is None:
            # The group, with unfinished forks. Until the process is waited for, the id of its group cannot be reused.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            with suppress(ChildProcessError):
                while True:
                    os.waitpid(-self._process.pid, 0)
        for end in (self._requests, self._output):
            if end is not None:
                end.close()
        self._process = self._requests = self._output = None

    def confined(self, rules: str) -> Launcher:
        """Return a launcher whose processes apply `rules` to themselves; see `conch_child.ipc.sandbox`."""
        return _ConfinedForks(self, rules)

    async def launch(
        self, name: str, connection: Connection, shared: Sequence[int], first: Awaitable[Message], rules: str = ""
    ) -> Process:
        """Fork a process and wait for its first message. Raises ModelLoadError."""
        from conch.server.backends.processes import untrusted  # takes numpy, which the fork server need not wait for

        async with self._slots:
            with self._adopting():
                self._request(f"{name}\0{rules}" if rules else name, connection, shared)
                connection.close_child_ends()
                try:
                    async with asyncio.timeout(self._limit_s):
                        born = await first
                except TimeoutError:
                    self.stop()
                    raise ModelLoadError(f"the fork server has not forked within {self._limit_s:g} s") from None
                except EOFError:
                    raise ModelLoadError(await self._explain_failure()) from None
        try:
            _, pid, error = untrusted.items(born, 3, "BORN")
            text = untrusted.message_text(error, "an error")
            pid = untrusted.integer(pid, 0 if text else 1, 2**31 - 1, "a process id")
        except WireError as malformed:
            raise ModelLoadError(f"the forked process sent a malformed IPC message: {malformed}") from None
        if text:
            raise ModelLoadError(f"cannot fork a process: {text}", Code.UNAVAILABLE)
        return _Forked(pid)

    def _request(self, name: str, connection: Connection, shared: Sequence[int]) -> None:
        self.start()
        assert self._requests is not None
        ends = (connection.child_control, connection.child_output, connection.child_error)
        try:
            # If the fork server has just exited, the child's ends are closed, and reading the first message fails.
            with suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._requests, [name.encode()], [*(end.fileno() for end in ends), *shared])
        except OSError as error:
            text = f"cannot request a process of the fork server: {error.strerror}"
            raise ModelLoadError(text, Code.UNAVAILABLE) from error

    @contextmanager
    def _adopting(self) -> Iterator[None]:
        """Adopt orphans while a process is forked, and no longer: this process does not reap others."""
        if not self._launching:
            self._adopted_before = prctl.is_subreaper()
            prctl.set_subreaper(True)
        self._launching += 1
        try:
            yield
        finally:
            self._launching -= 1
            if not self._launching:
                prctl.set_subreaper(self._adopted_before)

    async def _explain_failure(self) -> str:
        process, output = self._process, self._output
        if process is None or output is None:
            return "the fork server was stopped"
        # Its descriptors are closed shortly before `waitid` reports its exit.
        for _ in range(_EXIT_CHECKS):
            if _has_ended(process):
                break
            await asyncio.sleep(_EXIT_CHECK_INTERVAL_S)
        else:
            return "the fork server did not fork a process, or the process exited immediately"
        printed = ""
        with suppress(ValueError):  # closed: another launch has failed by the same exit
            printed = os.pread(output.fileno(), _MAX_OUTPUT_BYTES, 0).decode(errors="replace").rstrip()
        if process is self._process:
            self.stop()
        return f"the fork server {Exit(process.returncode)}" + (f":\n{printed}" if printed else "")


@dataclass(frozen=True, slots=True)
class _ConfinedForks:
    """Launches forked processes that apply rules to themselves."""

    fork_server: ForkServer
    rules: str

    async def launch(
        self, name: str, connection: Connection, shared: Sequence[int], first: Awaitable[Message]
    ) -> Process:
        """Fork a process. Raises ModelLoadError."""
        return await self.fork_server.launch(name, connection, shared, first, self.rules)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has exited; does not reap it."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # reaped already
        process.poll()
        return True
