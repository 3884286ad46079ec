"""The socket of one HTTP/2 client."""

import asyncio
import contextlib
from typing import Any, Protocol, cast

from conch.domain.tensor import Buffer
from conch.protocols.connections.listener import peer_address
from conch.protocols.http2.frames import ErrorCode
from conch.protocols.http2.session import Http2Session
from conch.protocols.http2.streams import StreamsOwner

# The transport's high-water mark; above it data stay in the streams' buffers.
_HIGH_WATER_BYTES = 2**20
# Up to this size buffered parts are joined, which is cheaper than handing many parts to the kernel.
_JOIN_BYTES = 65_536
# Larger reads are parsed as a view.
_MIN_VIEW_BYTES = 16_384
# How long a client may continue to send after the last frame was sent. Closing at once would reset the connection, and
# the client's system would discard that frame.
_LINGER_S = 1.0


class Http2ConnectionOwner(StreamsOwner[Any], Protocol):
    """The server, as its connections see it."""

    read_buffer: memoryview  # shared by all connections: a read is consumed before the next one

    def opened(self, connection: "Http2Connection") -> bool:
        """Count a connection in; False if there are too many."""

    def closed(self, connection: "Http2Connection") -> None:
        """Count it out."""


class Http2Connection(asyncio.BufferedProtocol):
    """The protocol object of one client. Belongs to the event loop's thread."""

    def __init__(self, owner: Http2ConnectionOwner) -> None:
        self._owner = owner
        self._clock = owner.clock
        self._traffic = owner.traffic
        self._parse_budget = owner.parse_budget
        self._transport: asyncio.Transport
        self._loop: asyncio.AbstractEventLoop
        self.session: Http2Session[Any] = Http2Session(owner, self)
        self.peer = ""  # the address of the client, "" for a Unix socket; asked at once, as later it may be gone
        self.writable = True
        self._unwritable_since = 0.0
        # Written in one system call at the end of a read or of the loop's turn: each call costs more than an answer.
        self._buffered: list[Buffer] = []
        self._buffered_bytes = 0
        self._buffering = False
        self._backlog = False  # whether data are left for the next turn; reading is paused until then
        self._closed_at: float | None = None  # when the last frame was sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a client."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's have no common base class
        self._loop = asyncio.get_running_loop()
        self.peer = peer_address(self._transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self.session.start()
        if not self._owner.opened(self):
            self.session.fail(ErrorCode.ENHANCE_YOUR_CALM, "too many connections")

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        """Release resources and cancel the calls of this client."""
        self._owner.closed(self)
        self._closed_at = self._clock.now
        self.writable = False
        self.session.release()
        # They refer to this, the transport if it is that of TLS: garbage collection need not free them.
        del self.session, self._transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - there is one buffer
        """Return the receive buffer."""
        return self._owner.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what was received."""
        self._traffic.received_bytes += nbytes
        if self._closed_at is not None:
            return
        data: Buffer = self._owner.read_buffer[:nbytes]
        # Parsing many small frames is faster in bytes; payloads of large ones are copied once, from the view.
        if self._receive(data if nbytes > _MIN_VIEW_BYTES else bytes(data)):
            self._backlog = True
            if not self._transport.is_closing():
                self._transport.pause_reading()
            self._parse_budget.postpone(self._resume)

    def _receive(self, data: Buffer) -> bool:
        """Parse data. Returns whether some are left for the next turn of the loop."""
        self._buffering = True
        more = self.session.receive(data)
        self._flush()
        return more

    def _resume(self) -> None:
        """Parse data that earlier turns have left."""
        if self._closed_at is None and self._receive(b""):
            self._parse_budget.postpone(self._resume)
            return
        self._backlog = False
        if self.writable and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> None:
        """Close: a client that has closed its side has, as a rule, disconnected."""

    def pause_writing(self) -> None:
        """Pause reading while the write buffer is full (backpressure)."""
        self.writable = False
        self._unwritable_since = self._clock.now
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading and sending."""
        self.writable = True
        if not self._transport.is_closing():
            if not self._backlog:
                self._transport.resume_reading()
            self.session.resume()

    # Called by the session.

    def write(self, data: Buffer) -> None:
        """Send one buffer."""
        if self._buffering:
            self._buffer(data)
        elif self._closed_at is None:
            self._traffic.sent_bytes += len(data)
            self._transport.write(data)

    def write_soon(self, data: Buffer) -> None:
        """Send one buffer, with others that follow in the same turn of the loop."""
        if not self._buffering and self._closed_at is None:
            self._buffering = True
            self._loop.call_soon(self._flush)
        self._buffer(data)

    def write_parts(self, parts: list[Buffer]) -> None:
        """Send several without joining them."""
        if self._buffering:
            for part in parts:
                self._buffer(part)
            if self._buffered_bytes > _HIGH_WATER_BYTES:
                self._flush()
        elif self._closed_at is None:
            for part in parts:
                self._traffic.sent_bytes += len(part)
            self._transport.writelines(parts)

    def close(self) -> None:
        """Close when everything written has been sent and the client has had time to read it."""
        if self._closed_at is not None:
            return
        self._flush()
        self._closed_at = self._clock.now
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has disconnected, and the loop has not noticed it
                self._transport.write_eof()
        else:
            self._transport.close()

    def _buffer(self, data: Buffer) -> None:
        self._buffered.append(data)
        self._buffered_bytes += len(data)

    def _flush(self) -> None:
        """Send the buffered parts."""
        self._buffering = False
        buffered, size = self._buffered, self._buffered_bytes
        if not buffered:
            return
        self._buffered = []
        self._buffered_bytes = 0
        if self._closed_at is not None:
            return
        self._traffic.sent_bytes += size
        if len(buffered) == 1:
            self._transport.write(buffered[0])
        elif size <= _JOIN_BYTES:
            self._transport.write(b"".join(buffered))
        else:
            self._transport.writelines(buffered)

    # Called by the server.

    def abort(self) -> None:
        """Close immediately, whatever is in flight."""
        self._transport.abort()

    @property
    def unsent_bytes(self) -> int:
        """The bytes of answers that the client has not taken."""
        return self.session.unsent_bytes + self._transport.get_write_buffer_size()

    def sweep(self) -> None:
        """Enforce the timeouts. Called about once a second."""
        now = self._clock.now
        stalled_write_s = self._owner.limits.stalled_write_s
        if not self.writable and now - self._unwritable_since > stalled_write_s:
            self._transport.abort()
        elif self._closed_at is None:
            self.session.sweep()
        elif now - self._closed_at > (stalled_write_s if self._transport.get_write_buffer_size() else _LINGER_S):
            self._transport.abort()
