"""A non-blocking TCP socket of the load generator."""

import socket
from typing import Final

MAX_RECEIVE_BYTES: Final = 262_144
_FIRST_RECEIVE_BYTES: Final = 16_384


class Wire:
    """Bytes in, bytes out. `TlsWire` overrides all of it."""

    __slots__ = ("_recv", "_send", "_size", "layered", "sock")

    def __init__(self, sock: socket.socket) -> None:
        """Assign. `sock` is connecting."""
        self.sock = sock
        self.layered = False  # whether there is a handshake, and bytes may be left when the socket has none
        self._size = _FIRST_RECEIVE_BYTES
        self._recv = sock.recv
        self._send = sock.send

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self.sock.fileno()

    def connect_error(self) -> int:
        """Return the errno of connecting, 0 if it succeeded."""
        return self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def begin_handshake(self) -> None:
        """Prepare `handshake`."""

    def handshake(self) -> int:
        """Continue the handshake; return 0 when it is complete, else the event of epoll that it waits for."""
        return 0

    def receive(self) -> bytes | None:
        """Return what has arrived, b"" at the end, None if nothing has. Raises OSError."""
        try:
            data: bytes = self._recv(self._size)
        except BlockingIOError:
            return None
        if len(data) == self._size and self._size < MAX_RECEIVE_BYTES:
            self._size *= 4
        return data

    def send(self, data: bytes) -> int:
        """Return how many bytes were taken. Raises OSError."""
        try:
            return self._send(data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        """Close the socket; errors do not matter."""
        self.sock.close()
