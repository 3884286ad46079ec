"""A child process with a message socket: start, send and receive, log its output, detect its exit.

The owner interprets the messages; `conch_child/ipc/wire.py` has their format. A `Launcher` starts the process. It leads
a separate process group, so that only the server handles Ctrl-C, and so that processes that the child has started are
killed with it.
"""

import asyncio
import logging
import os
import signal
import socket
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, monotonic_ns
from typing import Any, TypeVar

from conch.base.errors import Code, ModelLoadError
from conch.base.logs import MODEL_LOGGER
from conch.base.pacing import TokenBucket
from conch.machine.cores import pin_process
from conch.server.backends.child.conch_child.ipc.wire import (
    MAX_CHILD_HEADER_SIZE,
    MAX_CHILD_PAYLOAD_SIZE,
    MAX_VALUES,
    READ_SIZE,
    Frame,
    FrameDecoder,
    Message,
    WireError,
    encode_to_child,
)
from conch.server.backends.processes.launch import Connection, Exit, Launcher, Process
from conch.server.backends.processes.untrusted import parse_message

_log = logging.getLogger(MODEL_LOGGER)

# A child that closed its socket is killed unless it exits within this time. After its exit, its output is read for as
# long, in case other processes still hold the pipes.
_GRACE_S = 0.5

_MAX_LINE_BYTES = 1 << 14
# The end of its standard error, for the error of a failed load.
_TAIL_LINES, _TAIL_BYTES = 8, 1 << 12
# Time for the messages of one child per iteration of the event loop.
MAX_TURN_NS = 5_000_000
# Unread messages that the child has caused itself; unread prompts of an engine.
MAX_UNREAD_BYTES = 256 * 2**20
# Of a connection to which a write has failed: more than a socket holds, and no stream without end.
_MAX_REST_READS = 64


class _HeldMessage:
    """A message that is not sent yet: arguments for `encode`, none if it will not be sent at all."""

    __slots__ = ("complete", "frame")

    def __init__(self, frame: tuple[Any, ...] | None = None) -> None:
        self.frame: tuple[Any, ...] = frame or ()
        self.complete = frame is not None


class ChildProcess:
    """One process, from `start` to its exit. All methods belong to the event loop's thread.

    `on_message` is called with every message and its payload; if it raises, the child is killed. `on_exit` is called
    once, after everything that the child had sent was delivered. A message has up to `max_payload` bytes of tensors.
    """

    def __init__(
        self,
        name: str,
        on_message: Callable[[Message, memoryview], None],
        on_exit: Callable[[Exit], None],
        max_payload: int = MAX_CHILD_PAYLOAD_SIZE,
    ) -> None:
        self.name = name
        self.max_values = MAX_VALUES  # in the header of a message
        self.max_payload = max_payload
        self.caused: frozenset[int] = frozenset()  # types of messages that answer the child's own
        self._unread = 0  # bytes of these in the write buffer, at most
        self.alive = False  # from the launch until the exit is reported
        self.exit: Exit | None = None
        self._on_message = on_message
        self._on_exit = on_exit
        self._launch: asyncio.Future[None] | None = None
        self._first: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._exited = asyncio.Event()
        self._process: Process | None = None
        self._control: asyncio.WriteTransport | None = None
        self._streams: set[asyncio.BaseTransport] = set()
        self._status: int | None = None
        self._pidfd = -1
        self._timer: asyncio.TimerHandle | None = None
        self._killed = False
        self._why = ""  # it was killed
        self._held: deque[_HeldMessage] = deque()  # messages behind one that is not complete
        self._stderr_tail: deque[str] = deque(maxlen=_TAIL_LINES)
        # What it prints and logs. The log never blocks the child: its pipes are always read.
        self.output = OutputLimit(self.log, lambda text: self.log(logging.WARNING, text))

    def __repr__(self) -> str:
        return f"<ChildProcess {self.name} pid={self.pid} {self.exit or 'running'}>"

    @property
    def pid(self) -> int:
        """Process id, 0 before the start."""
        return self._process.pid if self._process is not None else 0

    @property
    def unsent_bytes(self) -> int:
        """Bytes of messages that the child has not read, without what its socket holds."""
        control = self._control
        return 0 if control is None or control.is_closing() else control.get_write_buffer_size()

    @property
    def stderr_tail(self) -> str:
        """The last lines that the child wrote to its standard error."""
        return "\n".join(self._stderr_tail)

    async def start(self, launcher: Launcher, shared: Sequence[int] = (), cores: frozenset[int] = frozenset()) -> None:
        """Start the process, which inherits the `shared` descriptors, on `cores` or any. Raises ModelLoadError.

        When cancelled, it waits until the launch has succeeded or failed, and raises then; `kill` ends the process.
        """
        self._launch = asyncio.ensure_future(self._start(launcher, shared, cores))
        self._launch.add_done_callback(lambda launch: launch.cancelled() or launch.exception())  # mark as retrieved
        try:
            await asyncio.shield(self._launch)
        except asyncio.CancelledError:
            await asyncio.wait([self._launch])
            raise

    def send(self, message: Message, payload: Sequence[Any] = (), payload_size: int = 0) -> None:
        """Send a message; no-op if the child has exited, which `on_exit` reports."""
        if self._held:
            self._held.append(_HeldMessage((message, payload, payload_size)))
        else:
            self._write(message, payload, payload_size)

    def hold(self) -> Callable[..., None]:
        """Hold back later messages until the returned function is called, once.

        Its arguments are those of `send`, for a message that precedes those held back, or none.
        """
        held = _HeldMessage()
        self._held.append(held)
        return partial(self._resume_sending, held)

    def _resume_sending(self, held: "_HeldMessage", *frame: Any) -> None:
        held.frame, held.complete = frame, True
        while self._held and self._held[0].complete:
            frame = self._held.popleft().frame
            if frame:
                self._write(*frame)

    def _write(self, message: Message, payload: Sequence[Any] = (), payload_size: int = 0) -> None:
        """Write a message, and kill a child that does not read what it has caused."""
        control = self._control
        if control is None or control.is_closing():
            return
        frame = encode_to_child(message, payload, payload_size)
        if message[0] not in self.caused:
            control.write(frame)
            return
        unsent = control.get_write_buffer_size()
        control.write(frame)
        self._unread = min(self._unread, unsent) + control.get_write_buffer_size() - unsent
        if self._unread > MAX_UNREAD_BYTES:
            self.kill(f"it has not read {self._unread >> 20} MiB of answers")

    def kill(self, why: str = "") -> None:
        """Kill the child and its process group, immediately or as soon as it is launched; no-op after its exit.

        `why` becomes part of its `exit`.
        """
        self._killed = True
        self._why = self._why or why
        if self._process is not None and self._status is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def resume(self) -> None:
        """Resume the child if it was stopped (SIGSTOP)."""
        if self._process is not None and self._status is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGCONT)

    async def wait(self, limit_s: float | None) -> bool:
        """Wait until the child has exited and `on_exit` was called; return False on timeout.

        Returns immediately if it was never started.
        """
        if self._launch is None or self._exited.is_set():
            return True
        try:
            await asyncio.wait_for(self._exited.wait(), limit_s)
        except TimeoutError:
            return False
        return True

    def received(self, message: Message, payload: memoryview) -> None:
        """Pass a message to the owner; the first one to the launcher."""
        if self._process is not None:
            self._on_message(message, payload)
        elif not self._first.done():
            self._first.set_result(message)

    def log(self, level: int, text: str, source: str = "") -> None:
        """Log a message of the child, or about it, under its name."""
        first, _, rest = text.partition("\n")
        extra = {"instance": self.name, "block": rest}
        if source:
            extra["source"] = source
        _log.log(level, "%s", first, extra=extra, stacklevel=2)

    def printed(self, line: str, stream: str) -> None:
        """Log a line that the child has printed."""
        if stream == "stderr":
            self._stderr_tail.append(line)
        self.output.write(logging.WARNING if stream == "stderr" else logging.INFO, line, stream)

    def printed_too_much(self, data: bytes, stream: str) -> None:
        """Drop lines that the child has printed, which may still tell why it exits."""
        self.output.drop(data.count(b"\n") or 1, len(data))
        if stream == "stderr":
            last = data[-_TAIL_BYTES:].decode(errors="replace").splitlines()
            self._stderr_tail.extend(last[-_TAIL_LINES:])

    def stream_opened(self, stream: asyncio.BaseTransport) -> None:
        """Add one of the three connections."""
        self._streams.add(stream)

    def stream_closed(self, stream: asyncio.BaseTransport) -> None:
        """Remove a closed connection: after the exit the last one finishes, before it the socket starts a timeout."""
        self._streams.discard(stream)
        if self._status is not None:
            if not self._streams:
                self._finish()
        elif stream is not self._control:
            pass
        elif self._process is None:
            if not self._first.done():
                self._first.set_exception(EOFError())
                self._first.exception()  # mark as retrieved: the launcher may not wait for it
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GRACE_S, self.kill)

    async def _start(self, launcher: Launcher, shared: Sequence[int], cores: frozenset[int]) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection = await self._connect()
            try:
                process = await launcher.launch(self.name, connection, shared, self._first)
            finally:
                connection.close_child_ends()
            self._pidfd = _open_pidfd(process)
            pin_process(process.pid, cores)
        except BaseException as error:
            for stream in list(self._streams):
                stream.close()
            self._exited.set()
            if isinstance(error, OSError):
                text = f"cannot start a process: {error.strerror or error}"
                raise ModelLoadError(text, Code.UNAVAILABLE) from error
            raise
        self._process = process
        self.alive = True
        loop.add_reader(self._pidfd, self._process_ended)
        if self._killed:
            self.kill()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection()
        try:
            self._control, _ = await loop.create_unix_connection(
                lambda: _Control(self, connection.control), sock=connection.control
            )
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
        # Before the wait: until then the id of its process group cannot be reused.
        self.kill()
        self._status = self._process.wait()
        _reap_group(self._process.pid)
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
        self.exit = Exit(self._status, self._why)
        self.alive = False
        for stream in list(self._streams):
            stream.close()
        self.output.close()
        self._on_exit(self.exit)
        self._exited.set()


def _reap_group(group: int) -> None:
    """Reap the orphans of a process group that this process has adopted; repeat until none is left."""
    with suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
        asyncio.get_running_loop().call_later(_GRACE_S, _reap_group, group)


def _open_pidfd(process: Process) -> int:
    """Return a descriptor that is readable when the process has exited. Raises OSError after killing the process."""
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


class _Control(asyncio.Protocol):
    """Reads messages from the socket, and passes them to the owner for a limited time per iteration of the loop."""

    def __init__(self, owner: ChildProcess, connection: socket.socket) -> None:
        self._owner = owner
        self._connection = connection
        self._decoder = FrameDecoder(self._parse, MAX_CHILD_HEADER_SIZE, owner.max_payload)
        self._transport: Any = None
        self._frames: deque[Frame] = deque()  # received, and not yet handled
        self._waiting = False  # for the next iteration of the loop to handle them
        self._refused = False
        self._lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._owner.stream_opened(transport)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        try:
            frames = self._decoder.feed(data)
        except WireError as error:
            self._refuse(f"malformed IPC message: {error}")
            return
        if len(frames) == 1 and not self._waiting:
            self._pass_on(*frames[0])
        elif frames:
            self._frames.extend(frames)
            if not self._waiting:
                self._handle()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        if error is not None and not self._refused:
            self._read_rest()
        self._decoder.clear()  # not when the garbage collector comes to this cycle
        if not self._waiting:
            self._owner.stream_closed(self._transport)

    def _read_rest(self) -> None:
        """Read what the child sent before it exited: a failed write ends the connection, whatever is left to read."""
        with suppress(OSError):
            for _ in range(_MAX_REST_READS):
                data = self._connection.recv(READ_SIZE)
                if not data:
                    return
                self.data_received(data)

    def _parse(self, header: bytes) -> Message:
        return parse_message(header, self._owner.max_values)

    def _handle(self) -> None:
        frames, started = self._frames, 0
        while frames:
            self._pass_on(*frames.popleft())
            if frames:
                now = monotonic_ns()
                started = started or now
                if now - started > MAX_TURN_NS:
                    self._wait()
                    return

    def _pass_on(self, message: Message, payload: memoryview) -> None:
        try:
            self._owner.received(message, payload)
        except WireError as error:
            self._refuse(f"malformed IPC message: {error}")
        except Exception:
            self._refuse(f"error while handling one of its messages\n{traceback.format_exc()}")

    def _wait(self) -> None:
        self._waiting = True
        if not self._lost:
            self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self._waiting = False
        self._handle()
        if self._waiting:
            return
        if self._lost:
            self._owner.stream_closed(self._transport)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _refuse(self, why: str) -> None:
        """Kill the child, and read nothing more from it."""
        self._refused = True
        self._frames.clear()
        self._decoder.clear()
        self._owner.log(logging.ERROR, f"killed: {why}")
        self._owner.kill()
        if not self._lost:
            self._transport.abort()


class _Output(asyncio.Protocol):
    """Reads lines from standard output or error."""

    def __init__(self, owner: ChildProcess, stream: str) -> None:
        self._owner = owner
        self._stream = stream
        self._rest = b""
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._owner.stream_opened(transport)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        if self._owner.output.exhausted:
            end = data.rfind(b"\n") + 1 or len(data)
            self._rest = data[end:]
            self._owner.printed_too_much(data[:end], self._stream)
            return
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            for start in range(0, len(line) or 1, _MAX_LINE_BYTES):
                self._print(line[start : start + _MAX_LINE_BYTES])
        while len(self._rest) > _MAX_LINE_BYTES:
            self._print(self._rest[:_MAX_LINE_BYTES])
            self._rest = self._rest[_MAX_LINE_BYTES:]

    def connection_lost(self, _: Exception | None) -> None:
        if self._rest:
            self._print(self._rest)
        assert self._transport is not None
        self._owner.stream_closed(self._transport)

    def _print(self, line: bytes) -> None:
        self._owner.printed(line.decode(errors="replace").rstrip("\r"), self._stream)


# Of token buckets: the burst at once, and as much again each second.
MAX_LINES_PER_S = 2000
MAX_BYTES_PER_S = 2 << 20
# Lines that are logged in one iteration of the loop: about one millisecond.
_LINES_PER_TURN = 50
_REPORT_INTERVAL_S = 5.0


class OutputLimit:
    """Logs the lines of one process by `log(level, text, source)`, and drops those beyond the limit.

    Dropped lines are counted, and reported by `report` in intervals: the process is never blocked.
    """

    def __init__(self, log: Callable[[int, str, str], None], report: Callable[[str], None]) -> None:
        self._log = log
        self._report = report
        self._lines = TokenBucket(MAX_LINES_PER_S, MAX_LINES_PER_S, monotonic())
        self._bytes = TokenBucket(MAX_BYTES_PER_S, MAX_BYTES_PER_S, monotonic())
        self._queue: deque[tuple[int, str, str]] = deque()
        self._dropped_lines = self._dropped_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._turn = 0  # lines logged in this iteration of the loop

    @property
    def exhausted(self) -> bool:
        """Whether a line would be dropped."""
        now = monotonic()
        return self._lines.take(now, 0) < 1 or self._bytes.take(now, 0) < 0

    def write(self, level: int, text: str, source: str) -> None:
        """Log one line, now or in a later iteration of the loop, or drop it."""
        if self.exhausted:
            self.drop(1, len(text))
            return
        now = monotonic()
        self._lines.take(now, 1)
        self._bytes.take(now, len(text))
        if self._queue or self._turn >= _LINES_PER_TURN:
            self._queue.append((level, text, source))
            return
        if not self._turn:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._turn += 1
        self._log(level, text, source)

    def drop(self, lines: int, size: int) -> None:
        """Count lines that are not logged."""
        self._dropped_lines += lines
        self._dropped_bytes += size
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_REPORT_INTERVAL_S, self._report_dropped)

    def close(self) -> None:
        """Log what waits, and report what was dropped: the process has exited."""
        while self._queue:
            self._log(*self._queue.popleft())
        if self._timer is not None:
            self._timer.cancel()
            self._report_dropped()

    def _next_turn(self) -> None:
        self._turn = 0
        while self._queue and self._turn < _LINES_PER_TURN:
            self._turn += 1
            self._log(*self._queue.popleft())
        if self._turn:
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _report_dropped(self) -> None:
        self._timer = None
        lines, size = self._dropped_lines, self._dropped_bytes
        self._dropped_lines = self._dropped_bytes = 0
        self._report(
            f"dropped {lines} lines ({size} bytes) of its output, which exceeds {MAX_LINES_PER_S} lines or "
            f"{MAX_BYTES_PER_S >> 20} MiB per second"
        )


REPORT_INTERVAL_S = 10.0

T = TypeVar("T")


async def reported(instance: str, what: str, work: Awaitable[T]) -> T:
    """Await `work`; until it is done, log `what` and the elapsed time every 10 s for `instance`."""
    reports = asyncio.get_running_loop().create_task(_report(instance, what))
    try:
        return await work
    finally:
        reports.cancel()


async def _report(instance: str, what: str) -> None:
    began = monotonic()
    while True:
        await asyncio.sleep(REPORT_INTERVAL_S)
        _log.info("%s after %.0f s", what, monotonic() - began, extra={"instance": instance})
