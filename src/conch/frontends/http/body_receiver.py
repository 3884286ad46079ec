"""Receiving a large body in place.

The ordinary way of a body through the parser copies it twice: into the chunk that was read, and into the whole. For a
tensor of megabytes that is most of the work, so the rest of an announced body is read straight to where it belongs.
"""

import asyncio
from collections.abc import Callable

import numpy as np

from conch.tensor import Buffer


class BodyReceiver(asyncio.BufferedProtocol):
    """Stands in for the connection's protocol until the body is full. Everything but data goes to the connection."""

    def __init__(self, connection: asyncio.Protocol, begun: Buffer, size: int, received: Callable[[int], None]) -> None:
        """Go on with a body of which `begun` has come. Raises MemoryError if there is no room for `size` bytes.

        `received` is called with the number of bytes that have come, after each read.
        """
        # Memory is taken when it is written to: who announces a large body and does not send it costs nothing.
        self.body = np.empty(size, np.uint8).data
        self.position = len(begun)
        self.body[: self.position] = begun
        self._connection = connection
        self._received = received

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the rest of the body, and never more
        """Return the part that is still missing."""
        return self.body[self.position :]

    def buffer_updated(self, nbytes: int) -> None:
        """Count what was received."""
        self.position += nbytes
        self._received(self.position)

    def push(self, data: bytes) -> int:
        """Take data that were read before. Returns how much of them belongs to the body."""
        taken = min(len(data), len(self.body) - self.position)
        self.body[self.position : self.position + taken] = data[:taken]
        self.buffer_updated(taken)
        return taken

    def eof_received(self) -> None:
        """Close: what was announced will not come."""

    def connection_lost(self, error: Exception | None) -> None:
        """Pass on that the connection is gone."""
        self._connection.connection_lost(error)

    def pause_writing(self) -> None:
        """Hear that the client reads too slowly."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Hear that it has caught up."""
        self._connection.resume_writing()
