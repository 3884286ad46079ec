"""A handler's hold on the answer to one request."""

from collections.abc import Callable
from typing import Protocol

from conch.frontends.http.message import HttpRequest, sized_head, streamed_head
from conch.tensor import Buffer

# Up to this size, copying parts together is cheaper than handing several to the kernel.
_JOIN_BYTES = 32_768


class ReplyChannel(Protocol):
    """The connection as a reply sees it."""

    ending: bool  # whether the connection closes after this answer, whatever the client wants

    @property
    def writable(self) -> bool:
        """Whether the client keeps up with what is written."""

    def write(self, data: Buffer) -> None:
        """Send one buffer."""

    def write_parts(self, parts: list[Buffer]) -> None:
        """Send several buffers without joining them; they must not change until they have gone out."""

    def finished(self, keep_alive: bool) -> None:
        """Hear that the answer is complete."""

    async def drained(self) -> None:
        """Wait until the client has taken enough of what was written."""


class HttpReply:
    """The answer to one request: whole by `send`, or in pieces by `begin`, `write`… and `end`; now or later.

    A client that has gone is no error: what is written then is dropped. `on_disconnect`, if set, is called once if the
    client goes before the answer is complete.
    """

    __slots__ = ("_channel", "_request", "_streaming", "on_disconnect")

    def __init__(self, channel: ReplyChannel, request: HttpRequest) -> None:
        self._channel: ReplyChannel | None = channel
        self._request = request
        self._streaming = False
        self.on_disconnect: Callable[[], object] | None = None

    @property
    def open(self) -> bool:
        """Whether an answer is still wanted: none was completed, and the client is there."""
        return self._channel is not None

    @property
    def begun(self) -> bool:
        """Whether `begin` was called: what went out cannot be taken back."""
        return self._streaming

    @property
    def last(self) -> bool:
        """Whether the client has said that it will ask no more on this connection."""
        return not self._request.keep_alive

    def send(self, status: int, headers: bytes, *parts: Buffer) -> None:
        """Answer with a whole body, in one write. `headers` are lines; parts are bytes or views of single bytes."""
        channel = self._channel
        if channel is None:
            return
        self._channel = None
        self.on_disconnect = None  # which leads back here: without the cycle, no collector is needed
        request = self._request
        keep_alive = request.keep_alive and not channel.ending
        length = 0
        for part in parts:
            length += len(part)
        head = sized_head(status, headers, length, keep_alive)
        if request.method == b"HEAD":
            channel.write(head)
        elif length <= _JOIN_BYTES:
            channel.write(b"".join((head, *parts)))
        else:
            channel.write_parts([head, *parts])
        channel.finished(keep_alive)

    def begin(self, status: int, headers: bytes) -> None:
        """Start an answer of unknown size."""
        if self._channel is None:
            return
        self._streaming = True
        # Without chunks the end of the connection is the only mark of the body's end.
        chunked = not self._request.old_version
        keep_alive = chunked and self._request.keep_alive and not self._channel.ending
        self._request.keep_alive = keep_alive
        self._channel.write(streamed_head(status, headers, chunked, keep_alive))

    def write(self, data: bytes) -> None:
        """Send a piece of the answer; an empty one does nothing."""
        if self._channel is None or not data or self._request.method == b"HEAD":
            return
        self._channel.write(data if self._request.old_version else b"%x\r\n%s\r\n" % (len(data), data))

    def end(self) -> None:
        """Complete an answer that `begin` started."""
        channel = self._channel
        if channel is None:
            return
        self._channel = None
        self.on_disconnect = None
        if not self._request.old_version and self._request.method != b"HEAD":
            channel.write(b"0\r\n\r\n")
        channel.finished(self._request.keep_alive)

    @property
    def writable(self) -> bool:
        """Whether the client keeps up: what is written while it does not, waits in memory. True if it has gone."""
        return self._channel is None or self._channel.writable

    async def drained(self) -> None:
        """Wait until the client has taken enough that more may be written; at once if it has gone."""
        if self._channel is not None:
            await self._channel.drained()

    def disconnect(self) -> None:
        """Hear from the connection that the client has gone."""
        if self._channel is not None:
            self._channel = None
            if self.on_disconnect is not None:
                self.on_disconnect()
