"""Launching processes: their environment, the connection to the server, the interface of launchers, exit statuses."""

import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import FileIO
from typing import Protocol

from conch.base.errors import ModelLoadError
from conch.server.backends.child.conch_child.ipc.sandbox import VARIABLE
from conch.server.backends.child.conch_child.ipc.wire import Message

# Flags of the server, among them API keys, and the password of Triton's cache.
_SERVER = ("CONCH_*", "TRITONCACHE_*")
# Variables that programs need to run at all; an allowlist need not name them.
_BASIC = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    "PYTHON*", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_*", "NVIDIA_*",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChildEnvironment:
    """Shell patterns of names. `deny` wins over `allow`; an empty `allow` passes everything except the server's own."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def variables(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a child; `environ` is this process's by default."""
        passed = {name: value for name, value in (environ or os.environ).items() if self._passes(name)}
        # Printed lines appear in the log immediately, whatever their characters.
        return {**passed, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}

    def _passes(self, name: str) -> bool:
        if _matches(name, (*_SERVER, *self.deny)):
            return False
        return not self.allow or _matches(name, self.allow) or _matches(name, _BASIC)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. `status` is its exit status, or minus the number of the signal that killed it.

    `why` says why the server has killed it, where that is not the end of its model.
    """

    status: int
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"was killed: {self.why}"
        if self.status >= 0:
            return f"exited with status {self.status}"
        try:
            return f"was killed by {signal.Signals(-self.status).name}"
        except ValueError:
            return f"was killed by signal {-self.status}"


class Connection:
    """A socket for messages and two pipes for standard output and error; the server's and the child's end of each.

    Raises OSError when the system has no more descriptors.
    """

    def __init__(self) -> None:
        with ExitStack() as undo:
            self.control, self.child_control = (undo.enter_context(end) for end in socket.socketpair())
            self.output, self.child_output = _pipe(undo)
            self.error, self.child_error = _pipe(undo)
            undo.pop_all()

    def close_child_ends(self) -> None:
        """Close the child's ends after it has inherited them. Later calls are no-ops."""
        for end in (self.child_control, self.child_output, self.child_error):
            end.close()

    def close(self) -> None:
        """Close both ends of all three."""
        self.close_child_ends()
        for end in (self.control, self.output, self.error):
            end.close()


class Process(Protocol):
    """A launched child process."""

    @property
    def pid(self) -> int:
        """Process id; also that of its process group."""

    def wait(self) -> int:
        """Wait for its exit and return its status, or minus the number of the signal that killed it."""


class Launcher(Protocol):
    """A way to start processes."""

    async def launch(
        self, name: str, connection: Connection, shared: Sequence[int], first: Awaitable[Message]
    ) -> Process:
        """Start a process that inherits the child's ends of the connection, which are closed here, and `shared`.

        `first` is the first message that the process sends; EOFError if it exits before. Raises ModelLoadError.
        """


class Program:
    """Launches `<command> <control fd> <shared fds> <name>` with the environment."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.command = command
        self._environment = environment

    def confined(self, rules: str) -> "Program":
        """Return a launcher whose processes apply `rules` to themselves; see `conch_child.ipc.sandbox`."""
        return Program(self.command, {**self._environment, VARIABLE: rules})

    async def launch(self, name: str, connection: Connection, shared: Sequence[int], _: Awaitable[Message]) -> Process:
        """Start it; returns when its program has begun to run. Raises ModelLoadError."""
        descriptors = (connection.child_control.fileno(), *shared)
        try:
            # Blocks the loop's thread for milliseconds: the child's PR_SET_PDEATHSIG refers to the parent *thread*.
            return subprocess.Popen(  # noqa: ASYNC220 - see above
                [*self.command, *map(str, descriptors), name],
                stdin=subprocess.DEVNULL,
                stdout=connection.child_output,
                stderr=connection.child_error,
                env=self._environment,
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError as error:
            raise ModelLoadError(f"cannot run '{self.command[0]}': {error.strerror or error}") from error


def _pipe(undo: ExitStack) -> tuple[FileIO, FileIO]:
    reader, writer = os.pipe()
    return undo.enter_context(FileIO(reader, "r")), undo.enter_context(FileIO(writer, "w"))
