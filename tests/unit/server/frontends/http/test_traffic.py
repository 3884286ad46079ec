"""Bytes and refused requests of listeners, and the families made of them."""

import pytest

from conch.base.errors import BackendError, ConchError, Exhausted, InvalidRequest, LimitExceeded, QueueFull, Unavailable
from conch.protocols.connections.traffic import REASONS
from conch.server.frontends.grpc.status import GrpcError, Status, no_memory, refusal_reason
from conch.server.frontends.services import Service, listener_families
from tests.unit.server.frontends.http.conftest import client_of


def test_http_refusals_are_counted_by_status(listen) -> None:
    statuses = [*REASONS, 200, 400, 404, 500]
    answers = iter(statuses)
    server = listen(lambda request, reply: reply.send(next(answers), b"", b"x"))
    with client_of(server) as client:
        for status in statuses:
            assert client("GET", "/")[0] == status
    assert server.traffic.refused == {
        "unauthenticated": 1,
        "forbidden": 1,
        "timeout": 1,
        "too_large": 2,
        "rate_limited": 1,
        "unavailable": 1,
    }


def test_a_refusal_before_the_handler_counts(listen) -> None:
    server = listen(lambda request, reply: reply.send(200, b"", b""), limits={"body_bytes": 10, "head_fields": 4})
    with client_of(server) as client:
        assert client("POST", "/", b"x" * 11)[0] == 400  # as in Triton
    with client_of(server) as client:
        assert client("GET", "/", b"", {f"X-{number}": "1" for number in range(9)})[0] == 431
    assert server.traffic.refused["too_large"] == 2


def test_bytes_are_those_on_the_wire(listen, connect) -> None:
    server = listen(lambda request, reply: reply.send(200, b"", bytes(len(request.body) * 2)))
    peer = connect(server)
    sent = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + bytes(300_000)
    peer.send(sent)
    _, _, body = peer.receive()
    assert server.traffic.received_bytes == len(sent)
    assert len(body) == 600_000
    assert 0 < server.traffic.sent_bytes - len(body) < 500


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (GrpcError(Status.UNAUTHENTICATED, ""), "unauthenticated"),
        (GrpcError(Status.PERMISSION_DENIED, ""), "forbidden"),
        (GrpcError(Status.UNAVAILABLE, "", "forbidden"), "forbidden"),
        (GrpcError(Status.RESOURCE_EXHAUSTED, ""), "too_large"),
        (GrpcError(Status.INVALID_ARGUMENT, ""), ""),
        (no_memory(), "unavailable"),
        (LimitExceeded("", retry_after_s=1, quantity="requests"), "rate_limited"),
        (QueueFull(""), "unavailable"),
        (Exhausted(""), "unavailable"),
        (Unavailable(""), "unavailable"),
        (InvalidRequest(""), ""),
        (BackendError(""), ""),
    ],
)
def test_grpc_refusals_have_the_reasons_of_http(error: ConchError | GrpcError, reason: str) -> None:
    assert refusal_reason(error) == reason
    assert reason in {"", *REASONS.values()}


def test_refusals_of_all_listeners_are_added(listen) -> None:
    servers = {name: listen(lambda request, reply: reply.send(401, b"", b"")) for name in ("http", "metrics")}
    for server in servers.values():
        with client_of(server) as client:
            client("GET", "/")
    services = [Service(name, name, "127.0.0.1", server.port, server) for name, server in servers.items()]
    families = {family.name: list(family.points) for family in listener_families(services)}
    refused = {point.labels["reason"]: point.value for point in families["conch_rejected_requests_total"]}
    assert refused["unauthenticated"] == 2
    assert {point.labels["protocol"] for point in families["conch_connections"]} == {"http", "metrics"}
