"""The socket of one HTTP/2 client."""

import asyncio
import contextlib
from typing import Any, Protocol, cast

from conch.frontends.http2.frames import ErrorCode
from conch.frontends.http2.session import Http2Session
from conch.frontends.http2.streams import StreamsOwner
from conch.tensor import Buffer

# How much may wait in the transport before the streams wait instead.
_WRITE_AHEAD = 2**20
# Up to this size what gathers is joined, which is cheaper than handing many parts to the kernel.
_JOIN_BYTES = 65_536
# More than this is read as a view.
_VIEW_FROM = 16_384
# How long a client may go on sending after the last word was said. Closing at once would make its system throw away
# that word.
_LINGER_S = 1.0


class Http2ConnectionOwner(StreamsOwner[Any], Protocol):
    """What a connection needs of the server that accepted it."""

    read_buffer: memoryview  # where all connections read to: what comes is used up before the next one reads

    def opened(self, connection: "Http2Connection") -> bool:
        """Count a connection in; False if there are too many."""

    def closed(self, connection: "Http2Connection") -> None:
        """Count it out."""


class Http2Connection(asyncio.BufferedProtocol):
    """The protocol object of one client. Belongs to the event loop's thread."""

    def __init__(self, owner: Http2ConnectionOwner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport
        self._loop: asyncio.AbstractEventLoop
        self.session: Http2Session[Any] = Http2Session(owner, self)
        self.writable = True
        self._unwritable_since = 0.0
        # What goes out in one system call: at the end of a read, or of the loop's turn. Each costs more than an answer.
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0
        self._gathering = False
        self._backlog = False  # whether data that were read are left for the next turn; nothing is read until then
        self._closed_at: float | None = None  # when the last word was said

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a client."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of no common class
        self._loop = asyncio.get_running_loop()
        self._transport.set_write_buffer_limits(high=_WRITE_AHEAD)
        self.session.start()
        if not self._owner.opened(self):
            self.session.fail(ErrorCode.ENHANCE_YOUR_CALM, "too many connections")

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - why it left does not matter
        """Let go of everything; whoever works for this client is told."""
        self._owner.closed(self)
        self._closed_at = self._owner.now
        self.session.lost()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - there is one buffer
        """Say where to read to."""
        return self._owner.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what came."""
        if self._closed_at is not None:
            return
        data: Buffer = self._owner.read_buffer[:nbytes]
        # In small frames much is looked at, which is quicker in bytes; in large ones it is copied once, to its place.
        if self._receive(data if nbytes > _VIEW_FROM else bytes(data)):
            self._backlog = True
            if not self._transport.is_closing():
                self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def _receive(self, data: Buffer) -> bool:
        """Have data read. Returns whether some of them are left for the next turn."""
        self._gathering = True
        more = self.session.receive(data)
        self._flush()
        return more

    def _go_on(self) -> None:
        """Read what was left of earlier data."""
        if self._closed_at is None and self._receive(b""):
            self._loop.call_soon(self._go_on)
            return
        self._backlog = False
        if self.writable and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> None:
        """Close: a client that has closed its side has, as a rule, gone."""

    def pause_writing(self) -> None:
        """Hear that the client reads more slowly than it is answered: take no more from it either."""
        self.writable = False
        self._unwritable_since = self._owner.now
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Hear that it has caught up."""
        self.writable = True
        if not self._transport.is_closing():
            if not self._backlog:
                self._transport.resume_reading()
            self.session.resume()

    # Called by the session.

    def write(self, data: Buffer) -> None:
        """Send one buffer."""
        if self._gathering:
            self._gather(data)
        elif self._closed_at is None:
            self._transport.write(data)

    def write_soon(self, data: Buffer) -> None:
        """Send one buffer, with others that follow in the same turn of the loop."""
        if not self._gathering and self._closed_at is None:
            self._gathering = True
            self._loop.call_soon(self._flush)
        self._gather(data)

    def write_parts(self, parts: list[Buffer]) -> None:
        """Send several without joining them."""
        if self._gathering:
            for part in parts:
                self._gather(part)
            if self._gathered_bytes > _WRITE_AHEAD:
                self._flush()
        elif self._closed_at is None:
            self._transport.writelines(parts)

    def close(self) -> None:
        """Close when everything written has gone out, and the client has had a moment to read it."""
        if self._closed_at is not None:
            return
        self._flush()
        self._closed_at = self._owner.now
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has gone, and the loop has not seen it
                self._transport.write_eof()
        else:
            self._transport.close()

    def _gather(self, data: Buffer) -> None:
        self._gathered.append(data)
        self._gathered_bytes += len(data)

    def _flush(self) -> None:
        """Send what has gathered."""
        self._gathering = False
        gathered, size = self._gathered, self._gathered_bytes
        if not gathered:
            return
        self._gathered = []
        self._gathered_bytes = 0
        if self._closed_at is not None:
            return
        if len(gathered) == 1:
            self._transport.write(gathered[0])
        elif size <= _JOIN_BYTES:
            self._transport.write(b"".join(gathered))
        else:
            self._transport.writelines(gathered)

    # Called by the server.

    def abort(self) -> None:
        """Close without regard to what is going on."""
        self._transport.abort()

    def sweep(self) -> None:
        """End what takes too long. Called every second or so."""
        now = self._owner.now
        stalled_write_s = self._owner.limits.stalled_write_s
        if not self.writable and now - self._unwritable_since > stalled_write_s:
            self._transport.abort()
        elif self._closed_at is None:
            self.session.sweep()
        elif now - self._closed_at > (stalled_write_s if self._transport.get_write_buffer_size() else _LINGER_S):
            self._transport.abort()
