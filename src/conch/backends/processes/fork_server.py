"""The server's side of the fork server: one process that has imported what the process of every model needs.

`conch_child/python/fork_server.py` is the other side. It is started at the first need, or before that by who
knows that there will be one, and again when it has ended. The processes that it forks are children of this process and
do not depend on it any further.
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

from conch.backends import child
from conch.backends.child.conch_child.ipc import prctl
from conch.backends.child.conch_child.ipc.wire import Message
from conch.backends.processes.environment import ChildEnvironment
from conch.backends.processes.launch import Connection, Exit, Launcher, Process
from conch.errors import Code, ModelLoadError

MAIN = Path(child.__file__).with_name("python_main.py")

# Requests under way: so few that they never fill the socket, so many that it never waits for us.
_AT_A_TIME = 8

# What it has printed is not much: why it could not start.
_WORDS_SIZE = 1 << 14
# How long the end of a process can take to show.
_MOMENTS, _MOMENT_S = 30, 0.01


@dataclass(frozen=True, slots=True)
class _Forked:
    """A process that this one has adopted."""

    pid: int

    def wait(self) -> int:
        """Wait for its end and return its exit status, or minus the number of the signal that killed it.

        0 if somebody else has been told, as for a `subprocess.Popen`.
        """
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            return 0


class ForkServer:
    """Launches processes by forking them off a process that this starts. Belongs to one thread.

    `limit_s` is for a new process of it, which may have to import from a slow disk; then a fork takes milliseconds.
    `environment` says which variables it gets, and with it the processes of all models.
    """

    def __init__(
        self,
        command: Sequence[str] = (sys.executable, str(MAIN), "fork"),
        *,
        limit_s: float = 60.0,
        environment: ChildEnvironment | None = None,
    ) -> None:
        self.environment = environment or ChildEnvironment()
        self._command = command
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None
        self._output: FileIO | None = None
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self._unborn = 0
        self._adopted_before = False

    @property
    def pid(self) -> int:
        """Process id, 0 if it does not run."""
        return self._process.pid if self._process is not None and not _has_ended(self._process) else 0

    def start(self) -> None:
        """Start it unless it runs. Returns before it is ready to fork. Raises ModelLoadError if it cannot be run."""
        if self.pid:
            return
        self.stop()
        try:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                # No pipe: nobody reads before there is something to explain.
                self._output = FileIO(os.memfd_create("conch fork server output", os.MFD_CLOEXEC), "r+")
                self._process = subprocess.Popen(
                    [*self._command, str(theirs.fileno())],
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
        """End it, if it runs. What it has forked lives on."""
        if self._process is not None and self._process.returncode is None:
            # With what it is about to fork. Until it is waited for nobody else can have its process group's number.
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
        """Return what has processes forked that apply rules to themselves, see `conch_child.ipc.sandbox`."""
        return _ConfinedForks(self, rules)

    async def launch(
        self, name: str, connection: Connection, shared: Sequence[int], first: Awaitable[Message], rules: str = ""
    ) -> Process:
        """Have a process forked; it is there when it has spoken. Raises ModelLoadError."""
        async with self._turns:
            with self._adopting():
                self._request(f"{name}\0{rules}" if rules else name, connection, shared)
                connection.close_child_ends()
                try:
                    async with asyncio.timeout(self._limit_s):
                        _, pid, error = await first
                except TimeoutError:
                    self.stop()
                    raise ModelLoadError(f"the fork server has forked nothing for {self._limit_s:g} s") from None
                except EOFError:
                    raise ModelLoadError(await self._obituary()) from None
        if error:
            raise ModelLoadError(f"cannot fork a process: {error}", Code.UNAVAILABLE)
        return _Forked(pid)

    def _request(self, name: str, connection: Connection, shared: Sequence[int]) -> None:
        self.start()
        assert self._requests is not None
        ends = (connection.child_control, connection.child_output, connection.child_error)
        try:
            # If it has just ended, nobody holds the child's ends and nobody will speak.
            with suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._requests, [name.encode()], [*(end.fileno() for end in ends), *shared])
        except OSError as error:
            text = f"cannot ask the fork server for a process: {error.strerror}"
            raise ModelLoadError(text, Code.UNAVAILABLE) from error

    @contextmanager
    def _adopting(self) -> Iterator[None]:
        """Be the parent of orphans while a process is forked, and not longer: others are not ours to wait for."""
        if not self._unborn:
            self._adopted_before = prctl.adopts()
            prctl.adopt(True)
        self._unborn += 1
        try:
            yield
        finally:
            self._unborn -= 1
            if not self._unborn:
                prctl.adopt(self._adopted_before)

    async def _obituary(self) -> str:
        process, output = self._process, self._output
        if process is None or output is None:
            return "the fork server was stopped"
        # What it held is closed a little before its end shows.
        for _ in range(_MOMENTS):
            if _has_ended(process):
                break
            await asyncio.sleep(_MOMENT_S)
        else:
            return "the fork server forked nothing, or what it forked ended at once"
        words = ""
        with suppress(ValueError):  # somebody else has asked before
            words = os.pread(output.fileno(), _WORDS_SIZE, 0).decode(errors="replace").rstrip()
        if process is self._process:
            self.stop()
        return f"the fork server {Exit(process.returncode)}" + (f":\n{words}" if words else "")


@dataclass(frozen=True, slots=True)
class _ConfinedForks:
    """Launches processes that apply rules to themselves."""

    fork_server: ForkServer
    rules: str

    async def launch(
        self, name: str, connection: Connection, shared: Sequence[int], first: Awaitable[Message]
    ) -> Process:
        """Have a process forked. Raises ModelLoadError."""
        return await self.fork_server.launch(name, connection, shared, first, self.rules)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended. It has not been waited for then."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # or it has
        process.poll()
        return True
