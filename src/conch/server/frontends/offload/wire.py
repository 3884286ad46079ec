"""Frames between the server and a worker: a JSON head with the sizes of the parts that follow it.

    request     {"job": name, "args": {…}, "sizes": […]}
    answer      {"meta": {…}, "sizes": […]} or {"error": {"kind": …, "message": …, "param": …}, "sizes": []}

Both ends use blocking sockets; the server's calls release the interpreter lock while bytes are copied.
"""

import mmap
import socket
from collections.abc import Sequence
from struct import Struct
from time import monotonic
from typing import Any

import orjson

from conch.domain.tensor import Buffer

_SIZE = Struct("<I")
READY = b"\x01"
MAX_HEAD_BYTES = 16 * 2**20
_MAX_PARTS = 65_536
_MAX_PART_BYTES = 2**32
# Parts of a message up to this size are joined: one system call instead of several.
_JOIN_BYTES = 65_536
_MAPPED_BYTES = 2**20


class WorkerWireError(Exception):
    """The other side has closed the connection or has sent something that is not a frame."""


class FrameTooLarge(Exception):
    """A frame cannot be sent; nothing of it was."""


class WorkerConnection:
    """One end of the socket pair. `deadline` bounds every call, in seconds of the monotonic clock."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.deadline: float | None = None

    def send(self, head: dict[str, Any], parts: Sequence[Buffer]) -> None:
        """Send one frame. Raises FrameTooLarge, TimeoutError, OSError."""
        views = [memoryview(part).cast("B") for part in parts]
        text = orjson.dumps({**head, "sizes": [len(view) for view in views]})
        if len(text) > MAX_HEAD_BYTES or len(views) > _MAX_PARTS:
            raise FrameTooLarge
        start = _SIZE.pack(len(text)) + text
        if sum(map(len, views)) <= _JOIN_BYTES:
            self._send_all(b"".join((start, *views)))
            return
        self._send_all(start)
        for view in views:
            self._send_all(view)

    def receive(self) -> tuple[dict[str, Any], list[memoryview]]:
        """Return the head and the parts of the next frame. Raises WireError, TimeoutError, OSError."""
        (size,) = _SIZE.unpack(self._take(_SIZE.size))
        if size > MAX_HEAD_BYTES:
            raise WorkerWireError(f"a head of {size} bytes")
        head = orjson.loads(self._take(size))
        sizes = head["sizes"]
        if len(sizes) > _MAX_PARTS or any(size > _MAX_PART_BYTES for size in sizes):
            raise WorkerWireError("parts that are too many or too large")
        return head, [self._take(size) for size in sizes]

    def take_byte(self) -> bytes:
        """Return the next byte; empty at the end of the connection."""
        return bytes(self._take(1))

    def send_byte(self, byte: bytes) -> None:
        """Send a byte outside of any frame."""
        self._send_all(byte)

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def _take(self, size: int) -> memoryview:
        view = _room(size)
        taken = 0
        while taken < size:
            self._arm()
            got = self._end.recv_into(view[taken:])
            if not got:
                raise WorkerWireError("the connection has been closed")
            taken += got
        return view

    def _send_all(self, data: Buffer) -> None:
        view = memoryview(data)
        sent = 0
        while sent < len(view):
            self._arm()
            sent += self._end.send(view[sent:])

    def _arm(self) -> None:
        if self.deadline is not None:
            left = self.deadline - monotonic()
            if left <= 0:
                raise TimeoutError
            self._end.settimeout(left)


def _room(size: int) -> memoryview:
    """Return memory to receive into. Filling hundreds of megabytes with zeros would hold the interpreter lock."""
    if size < _MAPPED_BYTES:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
