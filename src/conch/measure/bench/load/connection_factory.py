"""Opens connections to an endpoint, and encodes requests for them."""

import errno
import os
import socket
from typing import TYPE_CHECKING

from conch.measure.bench.generator import AnswerCheck, Endpoint, PreparedRequest, Transport
from conch.measure.bench.load.connection import EncodedRequest, KnownAnswers, LoadConnection, LoadOwner, Wire, describe
from conch.measure.bench.load.http1_connection import Http1Connection, KnownAnswer, encode_http1

if TYPE_CHECKING:
    import ssl

# Linux has about 28,000 local ports for each pair of addresses. Once half of them are taken, it searches for the next
# one so long that 20,000 connections take ten seconds of CPU time.
CONNECTIONS_PER_SOURCE = 10_000
_IP_BIND_ADDRESS_NO_PORT = 24  # choose the port in connect, where the peer's address counts too


class ConnectionFactory:
    """What all connections of a process to its endpoint have in common. `address` is what `reach` returned."""

    def __init__(
        self, endpoint: Endpoint, address: tuple[int, tuple[object, ...]], check: AnswerCheck | None = None
    ) -> None:
        self._endpoint = endpoint
        self._answers = None if check is None else KnownAnswers(check)
        self._family, self._address = address
        self._tls = tls_of(endpoint)
        self._known = KnownAnswer()
        self._fields = connection_fields(endpoint)
        self._first_source = 0

    def use_sources_from(self, number: int) -> None:
        """Use source addresses from this number on, because other processes use those before."""
        self._first_source = number

    def open(self, owner: LoadOwner, connections: int = 0) -> LoadConnection:
        """Begin to connect, beside this number of open connections. Raises OSError."""
        sock = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            source = self._source(connections)
            if source is not None:
                sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
                sock.bind((source, 0))
            code = sock.connect_ex(self._address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except OSError:
            sock.close()
            raise
        return self._connection(owner, self._wire(sock))

    def encode(self, request: PreparedRequest, keep_body: bool) -> EncodedRequest:
        """Return the request as it goes over these connections."""
        return EncodedRequest(request, encode_http1(request, self._fields), keep_body)

    def _source(self, connections: int) -> str | None:
        """Return the address to connect from beside `connections` others, None for the system's choice."""
        number = self._first_source + connections // CONNECTIONS_PER_SOURCE
        if number == 0 or self._family != socket.AF_INET or not str(self._address[0]).startswith("127."):
            return None
        return f"127.0.{number // 250}.{number % 250 + 1}"

    def _wire(self, sock: socket.socket) -> Wire:
        if self._tls is None:
            return Wire(sock)
        from conch.measure.bench.load.tls_wire import TlsWire  # ssl takes time to import

        return TlsWire(sock, self._tls, server_name(self._endpoint))

    def _connection(self, owner: LoadOwner, wire: Wire) -> LoadConnection:
        return Http1Connection(owner, wire, self._known, self._answers)


def server_name(endpoint: Endpoint) -> str:
    """Return the name that the server's certificate must have."""
    assert endpoint.tls is not None
    return endpoint.tls.server_name or endpoint.host


def tls_of(endpoint: Endpoint) -> "ssl.SSLContext | None":
    """Return the TLS context for an endpoint, None without TLS. Raises OSError on unreadable files."""
    if endpoint.tls is None:
        return None
    return endpoint.tls.context(["h2"] if endpoint.transport == Transport.GRPC else ["http/1.1"])


def connection_fields(endpoint: Endpoint) -> bytes:
    """Return the fields of an HTTP/1.1 head that all requests of an endpoint share, each ended by CR LF."""
    fields = [("Host", endpoint.place), *endpoint.headers]
    return "".join(f"{name}: {value}\r\n" for name, value in fields).encode("latin-1")


def reach(endpoint: Endpoint, timeout_s: float) -> tuple[int, tuple[object, ...]]:
    """Return family and address of the endpoint at which a connection could be opened (and closed again).

    Raises ConnectionError with address and cause if it cannot be reached.
    """
    try:
        addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectionError(f"cannot resolve {endpoint.host!r}: {describe(error)}") from error
    causes: dict[str, None] = {}
    for family, _, _, _, address in addresses:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.settimeout(timeout_s)
                sock.connect(address)
                context = tls_of(endpoint)
                if context is not None:
                    context.wrap_socket(sock, server_hostname=server_name(endpoint)).close()
        except TimeoutError:
            causes[f"no connection within {timeout_s:g} s"] = None
        except OSError as error:
            causes[describe(error)] = None
        else:
            return int(family), tuple(address)
    raise ConnectionError(f"cannot connect to {endpoint.place}: {'; '.join(causes)}")
