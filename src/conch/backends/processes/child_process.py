"""A child process that the server talks to: brought up, listened to, its end noticed and explained.

Who uses it gives meaning to the messages; `conch_child/ipc/wire.py` says how they look. How it comes into
being is for a `Launcher` to know. It leads a process group of its own: a Ctrl-C in the terminal is the server's to
handle, and whatever the child has started goes when the child goes.
"""

import asyncio
import logging
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from conch.backends.child.conch_child.ipc.wire import FrameDecoder, Message, WireError, encode
from conch.backends.processes.launch import Connection, Exit, Launcher, Process
from conch.errors import Code, ModelLoadError
from conch.observability.logs import MODEL_LOGGER

_log = logging.getLogger(MODEL_LOGGER)

# A child that has closed its socket but lives on is ended; one that is gone is buried although its output goes on.
_GRACE_S = 0.5

_LONGEST_LINE = 1 << 14


class _Held:
    """A message that is not sent yet: its arguments for `encode`, none if it is not to be sent at all."""

    __slots__ = ("complete", "frame")

    def __init__(self, frame: tuple[Any, ...] | None = None) -> None:
        self.frame: tuple[Any, ...] = frame or ()
        self.complete = frame is not None


class ChildProcess:
    """One process, from `start` to its end. All methods belong to the event loop's thread.

    `on_message` gets every message with its payload; if it raises, the child is not what it should be and is killed.
    `on_exit` is called once, after everything that the child had sent has been delivered.
    """

    def __init__(
        self,
        name: str,
        on_message: Callable[[Message, memoryview], None],
        on_exit: Callable[[Exit], None],
    ) -> None:
        self.name = name
        self.exit: Exit | None = None
        self._on_message = on_message
        self._on_exit = on_exit
        self._birth: asyncio.Future[None] | None = None
        self._first: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self._process: Process | None = None
        self._control: asyncio.WriteTransport | None = None
        self._streams: set[asyncio.BaseTransport] = set()
        self._status: int | None = None
        self._pidfd = -1
        self._timer: asyncio.TimerHandle | None = None
        self._unwanted = False
        self._held: deque[_Held] = deque()  # what waits for a message before it
        self._last_words: deque[str] = deque(maxlen=8)

    def __repr__(self) -> str:
        return f"<ChildProcess {self.name} pid={self.pid} {self.exit or 'running'}>"

    @property
    def pid(self) -> int:
        """Process id, 0 as long as there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def last_words(self) -> str:
        """The last lines that the child wrote to its standard error."""
        return "\n".join(self._last_words)

    async def start(self, launcher: Launcher, shared: Sequence[int] = ()) -> None:
        """Bring the process up, with descriptors that it shall have besides its own. Raises ModelLoadError.

        Cancelled, it still waits until there is a process, or none; `kill` ends it.
        """
        self._birth = asyncio.ensure_future(self._come_up(launcher, shared))
        self._birth.add_done_callback(lambda birth: birth.cancelled() or birth.exception())  # it may interest nobody
        try:
            await asyncio.shield(self._birth)
        except asyncio.CancelledError:
            await asyncio.wait([self._birth])
            raise

    def send(self, message: Message, payload: Sequence[Any] = (), payload_size: int = 0) -> None:
        """Send a message. Nothing happens if the child has gone; that is told by `on_exit`."""
        if self._held:
            self._held.append(_Held((message, payload, payload_size)))
        elif self._control is not None and not self._control.is_closing():
            self._control.write(encode(message, payload, payload_size))

    def hold(self) -> Callable[..., None]:
        """Hold back what is sent from now on, until the function that is returned is called, once.

        Its arguments are a message as for `send`, which goes before all that was held back, or none.
        """
        held = _Held()
        self._held.append(held)
        return partial(self._resume_sending, held)

    def _resume_sending(self, held: "_Held", *frame: Any) -> None:
        held.frame, held.complete = frame, True
        while self._held and self._held[0].complete:
            frame = self._held.popleft().frame
            if frame and self._control is not None and not self._control.is_closing():
                self._control.write(encode(*frame))

    def kill(self) -> None:
        """End the child and what it has started at once, or as soon as it is there. Does nothing if it has ended."""
        self._unwanted = True
        if self._process is not None and self._status is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def resume(self) -> None:
        """Let the child go on if somebody has stopped it (SIGSTOP)."""
        if self._process is not None and self._status is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGCONT)

    async def wait(self, limit_s: float | None) -> bool:
        """Wait until the child has gone and `on_exit` been called; return whether that was within the limit.

        There is nothing to wait for if it could not be started.
        """
        if self._birth is None or self._gone.is_set():
            return True
        try:
            await asyncio.wait_for(self._gone.wait(), limit_s)
        except TimeoutError:
            return False
        return True

    def received(self, message: Message, payload: memoryview) -> None:
        """Pass a message on."""
        if self._process is not None:
            self._on_message(message, payload)
        elif not self._first.done():
            self._first.set_result(message)

    def log(self, level: int, text: str, source: str = "") -> None:
        """Log what the child has to say, or what is to be said about it, under its name."""
        first, _, rest = text.partition("\n")
        extra = {"instance": self.name, "block": rest}
        if source:
            extra["source"] = source
        _log.log(level, "%s", first, extra=extra, stacklevel=2)

    def printed(self, line: str, stream: str) -> None:
        """Take a line that the child has printed."""
        if stream == "stderr":
            self._last_words.append(line)
            self.log(logging.WARNING, line, stream)
        else:
            self.log(logging.INFO, line, stream)

    def stream_opened(self, stream: asyncio.BaseTransport) -> None:
        """Note one of the three connections."""
        self._streams.add(stream)

    def stream_closed(self, stream: asyncio.BaseTransport) -> None:
        """Note that one of the three connections has ended."""
        self._streams.discard(stream)
        if self._status is not None:
            if not self._streams:
                self._finish()
        elif stream is not self._control:
            pass
        elif self._process is None:
            if not self._first.done():
                self._first.set_exception(EOFError())
                self._first.exception()  # it may be that nobody waits for it
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GRACE_S, self.kill)

    async def _come_up(self, launcher: Launcher, shared: Sequence[int]) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection = await self._connect()
            try:
                process = await launcher.launch(self.name, connection, shared, self._first)
            finally:
                connection.close_child_ends()
            self._pidfd = _watched(process)
        except BaseException as error:
            for stream in list(self._streams):
                stream.close()
            self._gone.set()
            if isinstance(error, OSError):
                text = f"cannot start a process: {error.strerror or error}"
                raise ModelLoadError(text, Code.UNAVAILABLE) from error
            raise
        self._process = process
        loop.add_reader(self._pidfd, self._process_ended)
        if self._unwanted:
            self.kill()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection()
        try:
            self._control, _ = await loop.create_unix_connection(lambda: _Control(self), sock=connection.control)
            await loop.connect_read_pipe(lambda: _Output(self, "stdout"), connection.output)
            await loop.connect_read_pipe(lambda: _Output(self, "stderr"), connection.error)
        except BaseException:
            connection.close()
            raise
        return connection

    def _process_ended(self) -> None:
        assert self._process is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        # Before it is waited for: until then nobody else can have its process group's number.
        self.kill()
        self._status = self._process.wait()
        _bury(self._process.pid)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(_GRACE_S, self._finish)
        if not self._streams:
            self._finish()

    def _finish(self) -> None:
        if self.exit is not None or self._status is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.exit = Exit(self._status)
        for stream in list(self._streams):
            stream.close()
        self._on_exit(self.exit)
        self._gone.set()


def _bury(group: int) -> None:
    """Wait for those of an ended process group who have become this process's children, as orphans: now and later."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
        asyncio.get_running_loop().call_later(_GRACE_S, _bury, group)


def _watched(process: Process) -> int:
    """Return a descriptor that tells when the process ends. Raises OSError, the process having been ended."""
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


class Backoff:
    """How long to wait before a dead child is started again.

    Not at all if it was of use while it lived: requests that kill it must not keep it from the others. One that was of
    none has a second chance at once, then is waited with longer and longer, up to half a minute.
    """

    FIRST_S = 0.5
    LONGEST_S = 30.0

    def __init__(self) -> None:
        self._deaths = 0

    def delay(self, *, worked: bool) -> float:
        """Return the seconds to wait, after a life in which it has worked or not."""
        if worked:
            self._deaths = 0
        self._deaths += 1
        if self._deaths == 1:
            return 0.0
        return min(self.FIRST_S * 2.0 ** (self._deaths - 2), self.LONGEST_S)


class _Control(asyncio.Protocol):
    """The socket: bytes to messages."""

    def __init__(self, owner: ChildProcess) -> None:
        self._owner = owner
        self._decoder = FrameDecoder()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._owner.stream_opened(transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message, payload in self._decoder.feed(data):
                self._owner.received(message, payload)
        except WireError as error:
            self._owner.log(logging.ERROR, f"killed, because it sent what cannot be understood: {error}")
            self._owner.kill()
        except Exception:
            text = f"killed, because one of its messages could not be dealt with\n{traceback.format_exc()}"
            self._owner.log(logging.ERROR, text)
            self._owner.kill()

    def connection_lost(self, _: Exception | None) -> None:
        assert self._transport is not None
        self._owner.stream_closed(self._transport)


class _Output(asyncio.Protocol):
    """Standard output or error: bytes to lines."""

    def __init__(self, owner: ChildProcess, stream: str) -> None:
        self._owner = owner
        self._stream = stream
        self._rest = b""
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._owner.stream_opened(transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._print(line)
        while len(self._rest) > _LONGEST_LINE:
            self._print(self._rest[:_LONGEST_LINE])
            self._rest = self._rest[_LONGEST_LINE:]

    def connection_lost(self, _: Exception | None) -> None:
        if self._rest:
            self._print(self._rest)
        assert self._transport is not None
        self._owner.stream_closed(self._transport)

    def _print(self, line: bytes) -> None:
        self._owner.printed(line.decode(errors="replace").rstrip("\r"), self._stream)
