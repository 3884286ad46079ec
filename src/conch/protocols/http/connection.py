# Compiled by mypyc in wheels.
"""One HTTP/1.1 connection: its receiver, its sender, and when it is closed."""

import asyncio
from typing import Final, Protocol, cast

from conch.protocols.connections.listener import peer_address
from conch.protocols.http.message import HttpRefusal
from conch.protocols.http.receiver import HttpReceiver
from conch.protocols.http.sender import HttpSender
from conch.protocols.http.server_context import ServerContext

# How long a refused client may pause, and how long in all it may continue to send, before the connection is closed.
# Closing at once would reset the connection, and the client's system would discard the refusal.
_LINGER_S: Final = 3.0
_MAX_LINGER_S: Final = 30.0


class HttpConnectionOwner(Protocol):
    """The server, as its connections see it."""

    def opened(self, connection: "HttpConnection") -> bool:
        """Count a connection in; False if there are too many."""

    def closed(self, connection: "HttpConnection") -> None:
        """Count it out."""


class HttpConnection:
    """The protocol object of one client. Belongs to the event loop's thread."""

    def __init__(self, owner: HttpConnectionOwner, context: ServerContext) -> None:
        self._owner = owner
        self._clock = context.clock
        self._limits = context.limits
        self._traffic = context.traffic
        self._transport: asyncio.Transport
        self.sender = HttpSender(context)
        self.receiver = HttpReceiver(context, self.sender)

    @property
    def protocol(self) -> asyncio.Protocol:
        """The connection as an asyncio protocol.

        It has a protocol's methods without being a subclass: a compiled class below one that is not compiled is slow.
        """
        return cast("asyncio.Protocol", self)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a client."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's have no common base class
        self.sender.connect(self._transport, self.receiver)
        self.receiver.connect(self._transport, self.protocol)
        if not self._owner.opened(self):
            self.receiver.refuse_now(
                HttpRefusal(503, "the server has reached its maximum of connections; try again later")
            )

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the reason does not matter
        """Release all resources, and cancel the request that is being answered."""
        self._owner.closed(self)
        self.receiver.close()
        self.sender.close()

    def data_received(self, data: bytes) -> None:
        """Parse data, and answer the requests that are complete."""
        self._traffic.received_bytes += len(data)
        self.receiver.receive(data)

    def eof_received(self) -> bool:
        """Close, unless the client announced that its request is the last one: it waits for the answer."""
        return self.sender.answering_last

    def pause_writing(self) -> None:
        """Pause reading while the write buffer is full (backpressure)."""
        self.sender.writable = False
        self.receiver.regulate()

    def resume_writing(self) -> None:
        """Resume answering and reading."""
        self.sender.resume()

    # Called by the server.

    @property
    def peer(self) -> str:
        """The address of the client, "" for a Unix socket."""
        return peer_address(self._transport)

    @property
    def unsent_bytes(self) -> int:
        """The bytes of answers that the client has not taken."""
        return self._transport.get_write_buffer_size()

    def finish(self) -> None:
        """Close, at once if the connection is idle, else after the answer that is due."""
        self.sender.ending = True
        if not self.sender.busy and not self.receiver.receiving:
            self._close()

    def abort(self) -> None:
        """Close immediately, whatever is in flight."""
        self._transport.abort()

    def sweep(self) -> None:
        """Enforce the timeouts. Called about once a second."""
        now, limits = self._clock.now, self._limits
        stalled_s = self.sender.stalled_s(now)
        waited_s = now - max(self.receiver.since, self.sender.since)
        if stalled_s is not None:
            if stalled_s > limits.stalled_write_s:
                self._transport.abort()
        elif self.sender.busy:
            return
        elif self.receiver.stopped:
            if waited_s > _LINGER_S or now - self.sender.since > _MAX_LINGER_S:
                self._transport.abort()
        elif self.receiver.receiving:
            if waited_s > limits.receive_grace_s + self.receiver.received_bytes / limits.receive_bytes_per_s:
                self.receiver.refuse_now(HttpRefusal(408, f"request not complete after {waited_s:.0f} s"))
        elif waited_s > limits.idle_s:
            self._close()

    def _close(self) -> None:
        self.receiver.stop()
        self._transport.close()
