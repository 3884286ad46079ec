# Compiled by mypyc in wheels.
"""One request outside of a run, over the load generator's connections: by these gRPC is probed, and answers learned."""

import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic_ns

from conch.measure.bench.generator import Endpoint, PreparedRequest, Transport
from conch.measure.bench.load.connection import OPEN, EncodedRequest, LoadConnection, LoadOwner, LoadRequest, LoadUser
from conch.measure.bench.load.connection import Wire as PlainWire
from conch.measure.bench.load.connection_factory import connection_fields, server_name
from conch.measure.bench.load.http1_connection import Http1Connection, KnownAnswer, encode_http1
from conch.measure.bench.records import RequestOutcome
from conch.measure.bench.targets.http_probe import TIMEOUT_S, client_context, refuse_connection
from conch.measure.bench.targets.target import NotHttp2, RequestFailure

_GRPC_STATUSES = range(1, 100)  # those above are of HTTP


def send_alone(endpoint: Endpoint, request: PreparedRequest, timeout_s: float = TIMEOUT_S) -> LoadRequest:
    """Send a request over a new connection and return it with status, body and text of its answer.

    Raises RequestFailure, TargetError.
    """
    with connected(endpoint, timeout_s) as wire:
        owner = _Exchange()
        connection, encoded = _prepared(endpoint, request, owner, wire)
        sent = LoadRequest(encoded, LoadUser(0, None), monotonic_ns(), 0)
        connection.state = OPEN
        connection.opened()
        connection.in_flight = 1
        connection.start(sent)
        while not sent.settled:
            connection.send_deferred()
            while connection.writing and connection.state == OPEN:
                connection.ready(select.EPOLLOUT)
            if not sent.settled:
                _receive(endpoint, connection, timeout_s)
            connection.deferred()
    if owner.outcome == RequestOutcome.OK:
        return sent
    if endpoint.transport is Transport.HTTP1 or sent.status in _GRPC_STATUSES:
        raise RequestFailure(sent.message, sent.status)
    raise NotHttp2(f"{endpoint.place} does not answer as gRPC does: {sent.message}")


@contextmanager
def connected(endpoint: Endpoint, timeout_s: float) -> Iterator[PlainWire]:
    """Open a connection whose calls block, over TLS if the endpoint is. Raises TargetError."""
    try:
        sock = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
    except OSError as error:
        refuse_connection(endpoint, error, timeout_s)
    with sock:
        wire = PlainWire(sock)
        if endpoint.tls is not None:
            from conch.measure.bench.load.tls_wire import TlsWire  # ssl takes time to import

            context = client_context(endpoint.tls, ["h2" if endpoint.transport is Transport.GRPC else "http/1.1"])
            wire = TlsWire(sock, context, server_name(endpoint))
        try:
            wire.begin_handshake()
            wire.handshake()
        except OSError as error:
            refuse_connection(endpoint, error, timeout_s)
        try:
            yield wire
        finally:
            wire.close()


def _prepared(
    endpoint: Endpoint, request: PreparedRequest, owner: LoadOwner, wire: PlainWire
) -> tuple[LoadConnection, EncodedRequest]:
    if endpoint.transport is Transport.HTTP1:
        encoded = EncodedRequest(request, encode_http1(request, connection_fields(endpoint)), True)
        return Http1Connection(owner, wire, KnownAnswer()), encoded
    from conch.measure.bench.load.grpc.connection import GrpcConnection, grpc_fields  # HPACK takes time to import
    from conch.measure.bench.load.grpc.messages import encode_grpc

    fields = grpc_fields(endpoint)
    return GrpcConnection(owner, wire, 1, fields), EncodedRequest(request, encode_grpc(request), True)


def _receive(endpoint: Endpoint, connection: LoadConnection, timeout_s: float) -> None:
    try:
        data = connection.wire.receive()
    except ConnectionResetError:
        data = b""
    except OSError as error:
        refuse_connection(endpoint, error, timeout_s)
    if data:
        connection.received(data, monotonic_ns())
    else:
        connection.peer_closed()


class _Exchange(LoadOwner):
    """The owner of one connection with one request."""

    def __init__(self) -> None:
        self.outcome = -1

    def settle(self, request: LoadRequest, outcome: int, now_ns: int, message: str = "") -> None:  # noqa: ARG002
        if not request.settled:
            request.settled = True
            request.message = message
            self.outcome = outcome

    def responded(self, request: LoadRequest, now_ns: int, tokens: int, characters: int) -> bool:  # noqa: ARG002
        request.responses += 1
        return True

    def retry(self, request: LoadRequest, now_ns: int, message: str) -> None:
        self.settle(request, RequestOutcome.REJECTED, now_ns, message)

    def sent(self, request: LoadRequest, now_ns: int) -> None:
        request.sent_ns = now_ns

    def retire(self, connection: LoadConnection) -> None: ...

    def available(self, connection: LoadConnection) -> None: ...

    def lost(self, connection: LoadConnection, message: str) -> None: ...

    def watch(self, connection: LoadConnection, writable: bool) -> None: ...

    def defer(self, connection: LoadConnection) -> None: ...

    def defer_send(self, connection: LoadConnection) -> None: ...
