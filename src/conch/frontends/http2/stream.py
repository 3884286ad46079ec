"""The sending side: one stream's answer, the windows that bound it, and who may send next."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from conch.frontends.http2.frames import (
    DATA,
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    LARGEST_WINDOW,
    ErrorCode,
    frame_head,
)
from conch.frontends.http2.limits import ReceiveWindow
from conch.tensor import Buffer

# Up to this size, copying parts together is cheaper than handing several to the kernel.
_JOIN_BYTES = 32_768
# What one stream may send before it is the next one's turn.
_TURN_BYTES = 512 * 1024
# Frames that open windows in answer to a write, and to so many bytes of one that windows hold back.
_CREDIT_PER_WRITE = 4
_BYTES_PER_CREDIT = 1024
_LAST_HEADERS = END_HEADERS | END_STREAM


class Http2Channel(Protocol):
    """The way to the client."""

    writable: bool  # whether the client keeps up with what is written

    def write(self, data: Buffer) -> None:
        """Send one buffer."""

    def write_soon(self, data: Buffer) -> None:
        """Send one buffer, with others that follow in the same turn of the loop."""

    def write_parts(self, parts: list[Buffer]) -> None:
        """Send several without joining them; they must not change until they have gone out."""

    def close(self) -> None:
        """Close when everything written has gone out."""


class Receiver(Protocol):
    """What becomes of one stream. No method may raise."""

    @property
    def no_receive_timeout(self) -> bool:
        """Whether the client may take any time to send the rest."""

    def data(self, data: Buffer, ended: bool) -> bool:
        """Take a piece of the client's data; a view must be copied to be kept. `ended` says that it was the last.

        Returns whether the client may send as much again; if not, `Http2Stream.took` is to be called later.
        """

    def aborted(self) -> None:
        """Hear that the client wants or can take no answer any more."""

    def drained(self) -> None:
        """Hear that all has been sent that was written; until then nothing more should be."""

    def overdue(self) -> None:
        """Hear that the client takes too long to send its request; the stream must be answered."""


class StreamOwner(Protocol):
    """What a stream tells its session."""

    @property
    def alone(self) -> bool:
        """Whether no other stream is open: nothing else will be sent in this turn of the loop."""

    def sent(self, stream: "Http2Stream") -> None:
        """The answer is complete."""

    def give_up(self, stream: "Http2Stream", code: ErrorCode) -> None:
        """The stream is to end without an answer, or without the rest of it."""

    def took(self, stream: "Http2Stream", size: int) -> None:
        """So much of what was received has been used up."""


class SendScheduler:
    """What the streams of a connection share: its window, the size of its frames, whose turn it is."""

    def __init__(self, channel: Http2Channel, most_held: int, relieved: Callable[[], None]) -> None:
        """Assign. `relieved` is called when no more than `most_held` bytes are held any longer."""
        self.channel = channel
        self._most_held = most_held
        self._relieved = relieved
        self._held = 0  # bytes of requests that are not answered, and of answers that are not sent
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.frame_bytes = DEFAULT_FRAME_SIZE
        self.window_credit = 0  # frames that the client may send to open windows, for the data that it was sent
        self.used = False  # whether something other than control went out since this was last asked
        self._waiting: dict[int, Http2Stream] = {}

    @property
    def full(self) -> bool:
        """Whether more is held for this client than is good for the server."""
        return self._held > self._most_held

    def count(self, size: int) -> None:
        """Count what is held from now on; what is no longer held is less than nothing."""
        was_full = self.full
        self._held += size
        if was_full and not self.full:
            self._relieved()

    def wait(self, stream: "Http2Stream") -> None:
        """Note that a stream has more to send than it may."""
        self._waiting[stream.id] = stream

    def forget(self, stream: "Http2Stream") -> None:
        """Note that it has not."""
        self._waiting.pop(stream.id, None)

    def open(self, increment: int) -> bool:
        """Widen the connection's window; False if that is more than the protocol allows."""
        was, self.window = self.window, self.window + increment
        if self.window > LARGEST_WINDOW:
            return False
        if was <= 0:  # else it is not what streams wait for, of which there may be many
            self.flush()
        return True

    def flush(self) -> None:
        """Send what windows and client allow, the streams in turn."""
        progress = True
        while progress and self._waiting and self.window > 0:
            progress = False
            for stream in tuple(self._waiting.values()):
                if not self.channel.writable or self.window <= 0:
                    return
                if stream.send_some():
                    progress = True
                    if not stream.clear:  # behind those that wait as well
                        self._waiting[stream.id] = self._waiting.pop(stream.id)


class Http2Stream:
    """One request and its answer: whole by `answer`, or in pieces by `begin`, `write`… and `end`.

    Parts that are written must not change until they have gone out. Once the stream is closed, by the end of the answer
    or by either side giving up, writing does nothing.
    """

    __slots__ = (
        "_outgoing",
        "_outgoing_bytes",
        "_outlet",
        "_owner",
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
        "untaken",
    )

    receiver: Receiver  # set by the session, at once

    def __init__(self, owner: StreamOwner, send_scheduler: SendScheduler, number: int, now: float) -> None:
        self._owner = owner
        self._outlet = send_scheduler
        self.id = number
        self._window = send_scheduler.initial_window
        self._outgoing: deque[memoryview] = deque()
        self._outgoing_bytes = 0
        self._trailers: bytes | None = None
        self.ended = False  # the client has sent its last
        self.closed = False
        self.receive_window: ReceiveWindow | None = None  # made where a request does not come in one piece
        self.received = 0  # bytes, as all that follow
        self.untaken = 0  # received, and not used up
        self.held = 0  # of a request that is complete, until its answer is
        self.since = now  # monotonic seconds
        self._stalled = 0.0  # when it was first seen that what waits does not go out, 0 if it does

    # What is sent.

    @property
    def clear(self) -> bool:
        """Whether all that was written has been handed on."""
        return not self._outgoing_bytes

    def answer(self, head: bytes, parts: Sequence[Buffer], size: int, trailers: bytes) -> None:
        """Send a whole answer: header block, `size` bytes in parts, block of trailers."""
        send_scheduler = self._outlet
        if self.closed:
            return
        if (
            size > _JOIN_BYTES
            or size > self._window
            or size > send_scheduler.window
            or size > send_scheduler.frame_bytes
        ):
            self.begin(head)
            self.write(parts, size)
            self.end(trailers)
            return
        self._window -= size
        send_scheduler.window -= size
        send_scheduler.used = True
        send_scheduler.window_credit += _CREDIT_PER_WRITE
        number = self.id
        write = send_scheduler.channel.write if self._owner.alone else send_scheduler.channel.write_soon
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
            self._outlet.used = True
            self._outlet.channel.write(frame_head(len(block), HEADERS, _LAST_HEADERS, self.id) + block)
            self._finish()

    def begin(self, head: bytes) -> None:
        """Send the header block of an answer."""
        if not self.closed:
            self._outlet.used = True
            self._outlet.channel.write_soon(frame_head(len(head), HEADERS, END_HEADERS, self.id) + head)

    def write(self, parts: Sequence[Buffer], size: int) -> None:
        """Send `size` bytes of data, at once as far as windows allow."""
        send_scheduler = self._outlet
        if self.closed or not size:
            return
        if not (
            self._outgoing_bytes
            or not send_scheduler.channel.writable
            or size > _JOIN_BYTES
            or size > self._window
            or size > send_scheduler.window
            or size > send_scheduler.frame_bytes
        ):
            self._window -= size
            send_scheduler.window -= size
            send_scheduler.used = True
            send_scheduler.window_credit += _CREDIT_PER_WRITE
            send_scheduler.channel.write_soon(b"".join((HEAD.pack(0, size, DATA, 0, self.id), *parts)))
            return
        waiting = self._outgoing_bytes
        self._outgoing.extend(memoryview(part) for part in parts if len(part))
        self._outgoing_bytes += size
        send_scheduler.count(size)
        send_scheduler.wait(self)
        if not waiting:
            send_scheduler.flush()

    def end(self, trailers: bytes) -> None:
        """Send the block of trailers, after all data."""
        if self.closed:
            return
        if self._outgoing_bytes:
            self._trailers = trailers
            return
        self._outlet.channel.write_soon(frame_head(len(trailers), HEADERS, _LAST_HEADERS, self.id) + trailers)
        self._finish()

    def reset(self, code: ErrorCode) -> None:
        """Give the stream up."""
        if not self.closed:
            self._owner.give_up(self, code)

    def took(self, size: int) -> None:
        """Tell the client that so much of its data has been used up; it may send as much again."""
        self._owner.took(self, size)

    # For the session.

    def open(self, increment: int) -> bool:
        """Widen the window; False if that is more than the protocol allows."""
        self._window += increment
        return self._window <= LARGEST_WINDOW

    def flush(self) -> None:
        """Send what its own window lets out."""
        while self._outgoing_bytes and self._outlet.channel.writable and self.send_some():
            pass

    def stalled_for(self, now: float) -> float:
        """Return for how many seconds the client has let nothing out of what waits."""
        if not self._outgoing_bytes:
            return 0.0
        self._stalled = self._stalled or now
        return now - self._stalled

    def send_some(self) -> bool:
        """Send a turn's worth of what waits. Returns whether anything was sent."""
        send_scheduler = self._outlet
        allowed = min(self._window, send_scheduler.window, _TURN_BYTES, self._outgoing_bytes)
        if allowed <= 0:
            return False
        self._window -= allowed
        send_scheduler.window -= allowed
        send_scheduler.used = True
        self._outgoing_bytes -= allowed
        send_scheduler.count(-allowed)
        self._stalled = 0.0
        parts: list[Buffer] = []
        sent = allowed
        while allowed:
            size = min(allowed, send_scheduler.frame_bytes)
            parts.append(frame_head(size, DATA, 0, self.id))
            self._move(size, parts)
            allowed -= size
        done = self._outgoing_bytes == 0
        send_scheduler.window_credit += _CREDIT_PER_WRITE if done else sent // _BYTES_PER_CREDIT
        if done:
            send_scheduler.forget(self)
            if self._trailers is not None:
                parts += (frame_head(len(self._trailers), HEADERS, _LAST_HEADERS, self.id), self._trailers)
        send_scheduler.channel.write_parts(parts)
        if done:
            if self._trailers is not None:
                self._finish()
            else:
                self.receiver.drained()
        return True

    def forget(self) -> None:
        """Close, and let go of what has not been sent."""
        self.closed = True
        self._outgoing.clear()
        self._outlet.count(-self._outgoing_bytes)
        self._outgoing_bytes = 0
        self._outlet.forget(self)

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

    def _finish(self) -> None:
        self.closed = True
        self._owner.sent(self)
