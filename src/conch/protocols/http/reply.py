# Compiled by mypyc in wheels.
"""The answer to one request, as a handler writes it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import Final, TypeAlias

from conch.domain.degradations import HEADER
from conch.domain.events.rows import ExchangeRow, Ring
from conch.domain.tensor import Buffer
from conch.protocols.http.message import HttpRequest, error_in_json, header, sized_head, streamed_head

# Up to this size, copying parts together is cheaper than handing several to the kernel.
_JOIN_BYTES: Final = 32_768
_EVENT_STREAM: Final = b"text/event-stream"
_KEPT: Final = b"Connection: keep-alive\r\n"  # the answer to the same header of HTTP/1.0

# Calls back with where the time of a call went, "" if that is not known: of its number in the event log, and when it
# was received (monotonic ns).
Explain: TypeAlias = Callable[[int, int, Callable[[str], None]], None]


class ReplyChannel(ABC):
    """The connection as a reply sees it."""

    # A Protocol would do, but its attributes and methods are looked up by name in compiled code.

    def __init__(self) -> None:
        self.ending = False  # whether the connection closes after this answer, whatever the client wants
        self.writable = True  # whether the client keeps up with what is written
        self._undrained: list[tuple[ExchangeRow, Ring]] = []

    def log(self, exchange: ExchangeRow, ring: Ring) -> None:
        """Add an exchange whose response has been written to the event log, when the client has taken that."""
        if self.writable:
            exchange.drained = exchange.written
            ring.add(exchange)
        else:
            self._undrained.append((exchange, ring))

    def log_drained(self, *, closed: bool = False) -> None:
        """Add the exchanges whose responses the client has taken, or will not take because it has disconnected."""
        if self._undrained:
            now = 0 if closed else monotonic_ns()
            for exchange, ring in self._undrained:
                exchange.drained = now
                ring.add(exchange)
            self._undrained.clear()

    @property
    @abstractmethod
    def peer(self) -> str:
        """The address of the client, "" for a Unix socket."""

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Send one buffer."""

    @abstractmethod
    def write_parts(self, parts: list[Buffer]) -> None:
        """Send several buffers without joining them; they must not change until they have been sent."""

    @abstractmethod
    def finished(self, keep_alive: bool) -> None:
        """Go to the next request, or close: the answer is complete."""

    @abstractmethod
    def abort(self) -> None:
        """Close immediately."""

    @abstractmethod
    def count_status(self, status: int) -> None:
        """Count an error that may be a refusal."""

    @abstractmethod
    async def drained(self) -> None:
        """Wait until the client has taken enough of what was written, or has disconnected."""


class HttpReply:
    """The answer to one request: whole by `send`, or in pieces by `begin`, `write`… and `end`; now or later.

    After the client has disconnected, what is written is dropped. `on_disconnect`, if set, is called once if the client
    disconnects before the answer is complete. `headers` are further lines of the answer, an error's too. With `explain`
    the answer says where its time went: in the header X-Conch-Why, or in a comment at the end of a stream of events.
    """

    __slots__ = (
        "_channel",
        "_exchange",
        "_explained",
        "_request",
        "_ring",
        "_streaming",
        "explain",
        "headers",
        "on_disconnect",
    )

    def __init__(self, channel: ReplyChannel, request: HttpRequest) -> None:
        self._channel: ReplyChannel | None = channel
        self._request = request
        self._streaming = False
        self.headers = b""
        self._exchange: ExchangeRow | None = None
        self._ring: Ring | None = None
        self.on_disconnect: Callable[[], object] | None = None
        self.explain: Explain | None = None
        self._explained: ReplyChannel | None = None  # while the end of a stream waits for its explanation

    @property
    def open(self) -> bool:
        """Whether an answer can be sent: none was completed, and the client is connected."""
        return self._channel is not None

    @property
    def peer(self) -> str:
        """The address of the client's end of the connection; "" for a Unix socket or after a disconnect."""
        return "" if self._channel is None else self._channel.peer

    @property
    def begun(self) -> bool:
        """Whether `begin` was called: status and headers have been sent."""
        return self._streaming

    @property
    def last(self) -> bool:
        """Whether the client has announced that this is the last request of the connection."""
        return not self._request.keep_alive

    def record(self, exchange: ExchangeRow, ring: Ring) -> None:
        """Record times, status and size of the answer in a row, which is added to a ring of the event log."""
        self._exchange = exchange
        self._ring = ring

    def add_id(self, text: str) -> None:
        """Add a text without spaces by which the event log finds the call."""
        row = self._exchange
        if row is not None:
            row.id = f"{row.id} {text}" if row.id else text

    def note_degraded(self, reason: str) -> None:
        """Add a reason why the answer is worse than asked; see `conch.domain.degradations`."""
        self.headers += header(HEADER.encode(), reason.encode())

    def send(self, status: int, headers: bytes, *parts: Buffer) -> None:
        """Answer with a whole body, in one write. `headers` are lines; parts are bytes or views of single bytes."""
        channel = self._channel
        if channel is None:
            return
        explain = self.explain
        if explain is not None:
            self.explain = None
            self._call(explain, partial(self._send_explained, status, headers, parts))
            return
        self._channel = None
        self.on_disconnect = None  # breaks a reference cycle: the garbage collector is not needed
        request = self._request
        exchange = self._exchange
        if exchange is not None:
            exchange.encoded = monotonic_ns()
        keep_alive = request.keep_alive and not channel.ending
        length = 0
        for part in parts:
            length += len(part)
        if status >= 400 and status != 500:
            channel.count_status(status)
        if request.old_version and keep_alive:
            self.headers += _KEPT
        head = sized_head(status, headers + self.headers, length, keep_alive)
        if request.method == b"HEAD":
            channel.write(head)
        elif length <= _JOIN_BYTES:
            channel.write(b"".join((head, *parts)))
        else:
            channel.write_parts([head, *parts])
        if exchange is not None:
            exchange.status = status
            exchange.bytes_out = length
            self._log(channel, exchange)
        channel.finished(keep_alive)

    def _call(self, explain: Explain, finish: Callable[[str], None]) -> None:
        exchange = self._exchange
        explain(0 if exchange is None else exchange.number, 0 if exchange is None else exchange.received, finish)

    def _send_explained(self, status: int, headers: bytes, parts: tuple[Buffer, ...], text: str) -> None:
        if text:
            self.headers += header(b"X-Conch-Why", text.encode())
        self.send(status, headers, *parts)

    def _end_explained(self, text: str) -> None:
        self._channel, self._explained = self._explained, None
        if text:
            self.write(b": X-Conch-Why: %s\n\n" % text.encode())
        self.end()

    def fail(self) -> None:
        """Answer 500, or abort the connection if an answer has begun: the server failed."""
        if self._streaming and self._channel is not None:
            self._channel.abort()
        else:
            self.send(500, *error_in_json("internal error"))

    def begin(self, status: int, headers: bytes) -> None:
        """Start an answer of unknown size."""
        if self._channel is None:
            return
        self._streaming = True
        if self.explain is not None and _EVENT_STREAM not in headers:
            self.explain = None
        # Without chunks the end of the connection is the only mark of the body's end.
        chunked = not self._request.old_version
        keep_alive = chunked and self._request.keep_alive and not self._channel.ending
        self._request.keep_alive = keep_alive
        if self._exchange is not None:
            self._exchange.status = status
            self._exchange.encoded = monotonic_ns()
        self._channel.write(streamed_head(status, headers + self.headers, chunked, keep_alive))

    def write(self, data: bytes) -> None:
        """Send a piece of the answer; an empty one does nothing."""
        if self._channel is None or not data or self._request.method == b"HEAD":
            return
        if self._exchange is not None:
            self._exchange.bytes_out += len(data)
        self._channel.write(data if self._request.old_version else b"%x\r\n%s\r\n" % (len(data), data))

    def end(self) -> None:
        """Complete an answer that `begin` started."""
        channel = self._channel
        if channel is None:
            return
        self._channel = None
        self.on_disconnect = None
        explain = self.explain
        if explain is not None:
            self.explain = None
            self._explained = channel
            self._call(explain, self._end_explained)
            return
        if not self._request.old_version and self._request.method != b"HEAD":
            channel.write(b"0\r\n\r\n")
        if self._exchange is not None:
            self._log(channel, self._exchange)
        channel.finished(self._request.keep_alive)

    def _log(self, channel: ReplyChannel, exchange: ExchangeRow) -> None:
        exchange.written = monotonic_ns()
        ring, self._exchange, self._ring = self._ring, None, None
        if ring is not None:
            channel.log(exchange, ring)

    @property
    def ending(self) -> bool:
        """Whether the connection closes after this answer, whatever the client wants."""
        return self._channel is not None and self._channel.ending

    def relay(self, data: Buffer) -> None:
        """Send bytes of an answer, its head included, that another process has written."""
        if self._channel is not None:
            self._streaming = True
            self._channel.write(data)

    def relayed(self, keep_alive: bool, *, aborted: bool = False) -> None:
        """Complete a relayed answer, or abort the connection where the other process does."""
        channel = self._channel
        if channel is None:
            return
        self._channel = None
        self.on_disconnect = None
        if aborted:
            channel.abort()
        else:
            channel.finished(keep_alive)

    @property
    def writable(self) -> bool:
        """Whether the client keeps up; otherwise what is written waits in memory. True if it has disconnected."""
        return self._channel is None or self._channel.writable

    async def drained(self) -> None:
        """Wait until the client has taken enough that more may be written; at once if it has disconnected."""
        if self._channel is not None:
            await self._channel.drained()

    def disconnect(self) -> None:
        """Drop the answer: the client has disconnected."""
        self._explained = None
        if self._channel is not None:
            self._channel = None
            if self._exchange is not None and self._ring is not None:
                self._ring.add(self._exchange)
                self._exchange = self._ring = None
            on_disconnect, self.on_disconnect = self.on_disconnect, None  # breaks a reference cycle
            if on_disconnect is not None:
                on_disconnect()
