"""Receiving a large body in place.

A body that passes the parser is copied twice: into the chunk that was read, and into the whole. For a tensor of
megabytes that is most of the work, so the rest of an announced body is read directly into its array.
"""

import asyncio
from collections.abc import Callable

import numpy as np

from conch.domain.tensor import Buffer
from conch.protocols.connections.traffic import Traffic


class BodyReceiver(asyncio.BufferedProtocol):
    """Replaces the connection as protocol until the body is complete. Other events go to the connection."""

    def __init__(
        self,
        connection: asyncio.Protocol,
        begun: Buffer,
        size: int,
        received: Callable[[int], None],
        traffic: Traffic,
    ) -> None:
        """Continue a body of which `begun` has come. Raises MemoryError if there is no room for `size` bytes.

        `received` is called with the number of bytes that have come, after each read.
        """
        # Memory is allocated on write: a large body that is announced and not sent costs nothing.
        self.body = np.empty(size, np.uint8).data
        self.position = len(begun)
        self.body[: self.position] = begun
        self._connection = connection
        self._received = received
        self._traffic = traffic

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the rest of the body, and never more
        """Return the part that is still missing."""
        return self.body[self.position :]

    def buffer_updated(self, nbytes: int) -> None:
        """Count received bytes."""
        self._traffic.received_bytes += nbytes
        self._take(nbytes)

    def push(self, data: bytes) -> int:
        """Copy data that were read before; return how many of the bytes belong to the body."""
        taken = min(len(data), len(self.body) - self.position)
        self.body[self.position : self.position + taken] = data[:taken]
        self._take(taken)
        return taken

    def _take(self, nbytes: int) -> None:
        self.position += nbytes
        self._received(self.position)

    def eof_received(self) -> None:
        """Close: the rest of the body will not come."""

    def connection_lost(self, error: Exception | None) -> None:
        """Delegate to the connection."""
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        """Delegate to the connection."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Delegate to the connection."""
        self._connection.resume_writing()
