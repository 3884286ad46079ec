# Compiled by mypyc in wheels.
"""The sending side: one stream's answer, flow control, and the order in which streams send."""

from collections import deque
from collections.abc import Sequence
from time import monotonic_ns
from typing import Final, Protocol

from conch.domain.events.rows import ExchangeRow, Ring
from conch.domain.tensor import Buffer
from conch.protocols.http2.frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    MAX_WINDOW_BYTES,
    ErrorCode,
    frame_head,
)
from conch.protocols.http2.limits import ReceiveWindow

# Up to this size, copying parts together is cheaper than handing several to the kernel.
_JOIN_BYTES: Final = 32_768
# How much one stream may send before the next one's turn.
_TURN_BYTES: Final = 512 * 1024
# WINDOW_UPDATE frames that a client may send for one write, and bytes per further frame of a write that waits for
# windows.
_CREDIT_PER_WRITE: Final = 4
_BYTES_PER_CREDIT: Final = 1024
_LAST_HEADERS: Final = END_HEADERS | END_STREAM


class Http2Channel(Protocol):
    """The way to the client."""

    writable: bool  # whether the client keeps up with what is written

    @property
    def peer(self) -> str:
        """The address of the client, "" for a Unix socket."""

    def write(self, data: Buffer) -> None:
        """Send one buffer."""

    def write_soon(self, data: Buffer) -> None:
        """Send one buffer, with others that follow in the same turn of the loop."""

    def write_parts(self, parts: list[Buffer]) -> None:
        """Send several without joining them; they must not change until they have been sent."""

    def close(self) -> None:
        """Close when everything written has been sent."""


class Receiver(Protocol):
    """Callbacks for one stream; must not raise."""

    @property
    def no_receive_timeout(self) -> bool:
        """Whether the request may take any time to arrive."""

    def data(self, data: Buffer, ended: bool) -> bool:
        """Receive a piece of the client's data; a view must be copied to be kept. `ended` says that it was the last.

        Returns whether the data are consumed; if not, `Http2Stream.consumed` must be called later.
        """

    def aborted(self) -> None:
        """Cancel: the client has reset the stream or disconnected."""

    def drained(self) -> None:
        """Write more: everything written so far has been sent."""

    def timed_out(self) -> None:
        """Answer the stream with an error: its request takes too long to arrive."""


class EndedReceiver:
    """The receiver of a stream that is answered, or was reset: discards what still comes."""

    no_receive_timeout = True

    def data(self, data: Buffer, ended: bool) -> bool:  # noqa: ARG002 - discarded
        """Discard the data."""
        return True

    def aborted(self) -> None:
        """No-op."""

    def drained(self) -> None:
        """No-op."""

    def timed_out(self) -> None:
        """No-op."""


ENDED_RECEIVER: Final = EndedReceiver()


class StreamOwner(Protocol):
    """The streams of a connection, as one of them sees them."""

    @property
    def alone(self) -> bool:
        """Whether no other stream is open: nothing else will be sent in this turn of the loop."""

    def sent(self, stream: "Http2Stream") -> None:
        """Close a stream whose answer is complete."""

    def reset_stream(self, stream: "Http2Stream", code: ErrorCode) -> None:
        """End a stream by RST_STREAM, without an answer or the rest of it."""

    def consumed(self, stream: "Http2Stream", size: int) -> None:
        """Give back `size` bytes of the windows: they have been consumed."""

    def resume(self) -> None:
        """Let the client send more: no more than the limit is held for it any longer."""


class SendScheduler:
    """Sends for the streams of a connection in turn, within its window."""

    def __init__(self, channel: Http2Channel, max_held_bytes: int) -> None:
        self.channel = channel
        self._max_held_bytes = max_held_bytes
        self.unsent_bytes = 0  # of answers
        self._held_bytes = 0  # bytes of unanswered requests and unsent answers
        self.window = DEFAULT_WINDOW_BYTES
        self.initial_window = DEFAULT_WINDOW_BYTES
        self.frame_bytes = DEFAULT_FRAME_BYTES
        self.window_credit = 0  # WINDOW_UPDATE frames that the client may send for the data that it was sent
        self.data_sent = False  # whether headers or data were sent; reset by the session
        self._waiting: dict[int, Http2Stream] = {}

    @property
    def full(self) -> bool:
        """Whether more than the limit is held for this client."""
        return self._held_bytes > self._max_held_bytes

    def count(self, size: int) -> bool:
        """Add `size` to the bytes held, negative when they are released; return whether there is room now."""
        was_full = self.full
        self._held_bytes += size
        return was_full and not self.full

    def wait(self, stream: "Http2Stream") -> None:
        """Queue a stream that has data to send."""
        self._waiting[stream.id] = stream

    def forget(self, stream: "Http2Stream") -> None:
        """Remove a stream from the queue."""
        self._waiting.pop(stream.id, None)

    def widen(self, increment: int) -> bool:
        """Widen the connection's window; False if that is more than the protocol allows."""
        was, self.window = self.window, self.window + increment
        if self.window > MAX_WINDOW_BYTES:
            return False
        if was <= 0:  # otherwise streams do not wait for it, and there may be many
            self.flush()
        return True

    def flush(self) -> None:
        """Send as much as windows and backpressure allow, the streams in turn."""
        progress = True
        while progress and self._waiting and self.window > 0:
            progress = False
            for stream in tuple(self._waiting.values()):
                if not self.channel.writable or self.window <= 0:
                    return
                if stream.send_turn():
                    progress = True
                    if not stream.flushed:  # behind the other streams
                        self._waiting[stream.id] = self._waiting.pop(stream.id)


class Http2Stream:
    """One request and its answer: whole by `answer`, or in pieces by `begin`, `write`… and `end`.

    Parts must not change until they have been sent. Once the stream is closed, by the end of the answer or by a reset,
    writing is a no-op.
    """

    __slots__ = (
        "_exchange",
        "_outgoing",
        "_outgoing_bytes",
        "_owner",
        "_ring",
        "_scheduler",
        "_stalled",
        "_trailers",
        "_window",
        "closed",
        "ended",
        "held",
        "id",
        "receive_window",
        "received",
        "receiver",
        "since",
        "trailing_metadata",
        "unconsumed",
    )

    receiver: Receiver  # set by the session, at once

    def __init__(self, owner: StreamOwner, scheduler: SendScheduler, number: int, now: float) -> None:
        self._owner = owner
        self._scheduler = scheduler
        self.id = number
        self._window = scheduler.initial_window
        self._outgoing: deque[memoryview] = deque()
        self._outgoing_bytes = 0
        self._trailers: bytes | None = None
        self._exchange: ExchangeRow | None = None
        self._ring: Ring | None = None
        self.ended = False  # the client has half-closed the stream
        self.closed = False
        self.receive_window: ReceiveWindow | None = None  # created for a request that comes in several pieces
        self.received = 0  # bytes, as all that follow
        self.unconsumed = 0  # received and not consumed
        self.held = 0  # bytes of a complete request, until it is answered
        self.since = now  # monotonic seconds
        self.trailing_metadata: Sequence[tuple[bytes, bytes]] = ()  # for the trailers of its answer
        self._stalled = 0.0  # when unsent data were first seen not to progress, 0 if they do

    @property
    def peer(self) -> str:
        """The address of the client, "" for a Unix socket."""
        return self._scheduler.channel.peer

    # What is sent.

    def record(self, exchange: ExchangeRow, ring: Ring) -> None:
        """Record when the answer, which follows, is written; the row is added to a ring when all of it is sent."""
        self._exchange = exchange
        self._ring = ring

    @property
    def flushed(self) -> bool:
        """Whether everything written has been passed to the transport."""
        return not self._outgoing_bytes

    def answer(self, head: bytes, parts: Sequence[Buffer], size: int, trailers: bytes) -> None:
        """Send a whole answer: header block, `size` bytes in parts, block of trailers."""
        scheduler = self._scheduler
        if self.closed:
            return
        if size > _JOIN_BYTES or size > self._window or size > scheduler.window or size > scheduler.frame_bytes:
            self.begin(head)
            self.write(parts, size)
            self.end(trailers)
            return
        self._window -= size
        scheduler.window -= size
        scheduler.data_sent = True
        scheduler.window_credit += _CREDIT_PER_WRITE
        number = self.id
        write = scheduler.channel.write if self._owner.alone else scheduler.channel.write_soon
        write(
            b"".join(
                (
                    HEAD.pack(0, len(head), HEADERS, END_HEADERS, number),
                    head,
                    HEAD.pack(0, size, DATA, 0, number),
                    *parts,
                    HEAD.pack(0, len(trailers), HEADERS, _LAST_HEADERS, number),
                    trailers,
                )
            )
        )
        self._finish()

    def answer_head(self, block: bytes) -> None:
        """Send an answer that is a header block and nothing else."""
        if not self.closed:
            self._scheduler.data_sent = True
            self._scheduler.channel.write(frame_head(len(block), HEADERS, _LAST_HEADERS, self.id) + block)
            self._finish()

    def begin(self, head: bytes) -> None:
        """Send the header block of an answer."""
        if not self.closed:
            self._scheduler.data_sent = True
            self._scheduler.channel.write_soon(frame_head(len(head), HEADERS, END_HEADERS, self.id) + head)

    def write(self, parts: Sequence[Buffer], size: int) -> None:
        """Send `size` bytes of data, immediately as far as windows allow."""
        scheduler = self._scheduler
        if self.closed or not size:
            return
        if not (
            self._outgoing_bytes
            or not scheduler.channel.writable
            or size > _JOIN_BYTES
            or size > self._window
            or size > scheduler.window
            or size > scheduler.frame_bytes
        ):
            self._window -= size
            scheduler.window -= size
            scheduler.data_sent = True
            scheduler.window_credit += _CREDIT_PER_WRITE
            scheduler.channel.write_soon(b"".join((HEAD.pack(0, size, DATA, 0, self.id), *parts)))
            return
        waiting = self._outgoing_bytes
        self._outgoing.extend(memoryview(part) for part in parts if len(part))
        self._outgoing_bytes += size
        scheduler.unsent_bytes += size
        scheduler.count(size)
        scheduler.wait(self)
        if not waiting:
            scheduler.flush()

    def end(self, trailers: bytes) -> None:
        """Send the block of trailers, after all data."""
        if self.closed:
            return
        if self._outgoing_bytes:
            self._trailers = trailers
            if self._exchange is not None:
                self._exchange.written = monotonic_ns()
            return
        self._scheduler.channel.write_soon(frame_head(len(trailers), HEADERS, _LAST_HEADERS, self.id) + trailers)
        self._finish()

    def reset(self, code: ErrorCode) -> None:
        """End the stream by RST_STREAM."""
        if not self.closed:
            self._owner.reset_stream(self, code)

    def consumed(self, size: int) -> None:
        """Allow the client to send `size` bytes more: they have been consumed."""
        self._owner.consumed(self, size)

    # For the session.

    def widen(self, increment: int) -> bool:
        """Widen the window; False if that is more than the protocol allows."""
        self._window += increment
        return self._window <= MAX_WINDOW_BYTES

    def flush(self) -> None:
        """Send as much as the windows allow."""
        while self._outgoing_bytes and self._scheduler.channel.writable and self.send_turn():
            pass

    def stalled_s(self, now: float) -> float:
        """Return for how many seconds unsent data have waited for windows."""
        if not self._outgoing_bytes:
            return 0.0
        self._stalled = self._stalled or now
        return now - self._stalled

    def send_turn(self) -> bool:
        """Send one turn's worth of unsent data. Returns whether anything was sent."""
        scheduler = self._scheduler
        allowed = min(self._window, scheduler.window, _TURN_BYTES, self._outgoing_bytes)
        if allowed <= 0:
            return False
        self._window -= allowed
        scheduler.window -= allowed
        scheduler.data_sent = True
        self._outgoing_bytes -= allowed
        scheduler.unsent_bytes -= allowed
        if scheduler.count(-allowed):
            self._owner.resume()
        self._stalled = 0.0
        parts: list[Buffer] = []
        sent = allowed
        while allowed:
            size = min(allowed, scheduler.frame_bytes)
            parts.append(frame_head(size, DATA, 0, self.id))
            self._move(size, parts)
            allowed -= size
        done = self._outgoing_bytes == 0
        scheduler.window_credit += _CREDIT_PER_WRITE if done else sent // _BYTES_PER_CREDIT
        if done:
            scheduler.forget(self)
            if self._trailers is not None:
                parts += (frame_head(len(self._trailers), HEADERS, _LAST_HEADERS, self.id), self._trailers)
        scheduler.channel.write_parts(parts)
        if done:
            if self._trailers is not None:
                self._finish()
            else:
                self.receiver.drained()
        return True

    def close(self) -> None:
        """Close, and drop unsent data."""
        self.closed = True
        self._log(0)
        self._outgoing.clear()
        self._scheduler.unsent_bytes -= self._outgoing_bytes
        if self._scheduler.count(-self._outgoing_bytes):
            self._owner.resume()
        self._outgoing_bytes = 0
        self._scheduler.forget(self)

    def _move(self, size: int, parts: list[Buffer]) -> None:
        outgoing = self._outgoing
        while size:
            part = outgoing[0]
            if len(part) <= size:
                outgoing.popleft()
            else:
                outgoing[0] = part[size:]
                part = part[:size]
            size -= len(part)
            parts.append(part)

    def _log(self, drained: int) -> None:
        """Add the row of the call to the event log."""
        exchange, ring = self._exchange, self._ring
        if exchange is not None and ring is not None:
            exchange.drained = drained
            exchange.written = exchange.written or drained
            ring.add(exchange)
            self._exchange = self._ring = None

    def _finish(self) -> None:
        self.closed = True
        if self._exchange is not None:
            self._log(monotonic_ns())
        self._owner.sent(self)
