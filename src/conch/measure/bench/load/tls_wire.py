# Compiled by mypyc in wheels.
"""TLS on a connection of the load generator."""

import select
import socket
import ssl
from typing import Final

from conch.measure.bench.load.connection import Wire

_RECEIVE_BYTES: Final = 65_536
_SEND_BYTES: Final = 16_384


class TlsWire(Wire):
    """A socket below TLS."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str) -> None:
        """`name` is the server's, which the certificate must have."""
        super().__init__(sock)
        self.layered = True
        self._context = context
        self._name = name
        self._secure: ssl.SSLSocket | None = None

    def begin_handshake(self) -> None:
        self._secure = self._context.wrap_socket(
            self.sock, server_hostname=self._name, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )

    def handshake(self) -> int:
        assert self._secure is not None
        try:
            self._secure.do_handshake()
        except ssl.SSLWantReadError:
            return select.EPOLLIN
        except ssl.SSLWantWriteError:
            return select.EPOLLOUT
        return 0

    def receive(self) -> bytes | None:
        assert self._secure is not None
        try:
            return self._secure.recv(_RECEIVE_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

    def send(self, data: bytes) -> int:
        assert self._secure is not None
        sent = 0
        try:  # one record at a time: OpenSSL wants an attempt that did not succeed again with no fewer bytes
            while sent < len(data):
                sent += self._secure.send(memoryview(data)[sent : sent + _SEND_BYTES])
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        return sent

    def close(self) -> None:
        if self._secure is not None:
            self._secure.close()
        self.sock.close()
