"""How a process comes into being: what it is given, what the server then has of it, and how it ended."""

import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from typing import Protocol

from conch.backends.child.conch_child.ipc.sandbox import VARIABLE
from conch.backends.child.conch_child.ipc.wire import Message
from conch.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. `status` is its exit status, or minus the number of the signal that killed it."""

    status: int

    def __str__(self) -> str:
        if self.status >= 0:
            return f"exited with status {self.status}"
        try:
            return f"was killed by {signal.Signals(-self.status).name}"
        except ValueError:
            return f"was killed by signal {-self.status}"


class Connection:
    """A socket for messages and two pipes for what is printed; of each the server's and the child's end.

    Raises OSError where the system gives no more of them.
    """

    def __init__(self) -> None:
        with ExitStack() as undo:
            self.control, self.child_control = (undo.enter_context(end) for end in socket.socketpair())
            self.output, self.child_output = _pipe(undo)
            self.error, self.child_error = _pipe(undo)
            undo.pop_all()

    def close_child_ends(self) -> None:
        """Close what is the child's, once it has it; nothing happens the second time."""
        for end in (self.child_control, self.child_output, self.child_error):
            end.close()

    def close(self) -> None:
        """Close both ends of all three."""
        self.close_child_ends()
        for end in (self.control, self.output, self.error):
            end.close()


class Process(Protocol):
    """A child of the server's."""

    @property
    def pid(self) -> int:
        """Process id; also that of its process group."""

    def wait(self) -> int:
        """Wait for its end and return its exit status, or minus the number of the signal that killed it."""


class Launcher(Protocol):
    """A way to start processes."""

    async def launch(
        self, name: str, connection: Connection, shared: Sequence[int], first: Awaitable[Message]
    ) -> Process:
        """Start a process that has the child's ends of the connection, which are then closed here, and `shared`.

        `first` is the first message that the process sends; EOFError if it ends before. Raises ModelLoadError.
        """


class Program:
    """Runs `<command> <control fd> <shared fds> <name>` with the environment."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.command = command
        self._environment = environment

    def confined(self, rules: str) -> "Program":
        """Return the same program with rules that it applies to itself, see `conch_child.ipc.sandbox`."""
        return Program(self.command, {**self._environment, VARIABLE: rules})

    async def launch(self, name: str, connection: Connection, shared: Sequence[int], _: Awaitable[Message]) -> Process:
        """Start it; it is there when its program has begun to run. Raises ModelLoadError."""
        descriptors = (connection.child_control.fileno(), *shared)
        try:
            # In the loop's thread, for milliseconds: the child asks to be killed when its parent *thread* ends.
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
