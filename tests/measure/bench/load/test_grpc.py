"""gRPC against grpcio's server: outcomes, messages, streams, cancellation, limits of the server."""

from collections.abc import Iterator

import numpy as np
import pytest

from conch.measure.bench.generator import ClosedLoop, PreparedRequest
from conch.measure.bench.records import RequestOutcome
from tests.measure.bench.load.grpc_peer import REASON, grpc_peer
from tests.measure.bench.load.grpc_plans import grpc_plan, streamed, unary
from tests.measure.bench.load.running import run


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with grpc_peer() as port:
        yield port


def test_unary_calls_are_counted_and_timed(port):
    ran = run(grpc_plan(port, [unary("echo")], ClosedLoop(3), requests=50))
    assert ran.outcomes == {RequestOutcome.OK: 50}
    records = ran.records
    assert (records["responses"] == 1).all()
    assert (records["status"] == 0).all()
    for before, after in (("intended_ns", "sent_ns"), ("sent_ns", "first_ns"), ("first_ns", "done_ns")):
        assert (records[before] <= records[after]).all()
    assert (records["sent_bytes"] > 40).all()
    assert (records["received_bytes"] > 40).all()
    assert ran.errors == []


@pytest.mark.parametrize(
    ("model", "outcome", "status", "message"),
    [
        ("exhausted", RequestOutcome.REJECTED, 8, f"RESOURCE_EXHAUSTED: {REASON}"),
        ("invalid", RequestOutcome.CLIENT_ERROR, 3, "INVALID_ARGUMENT: no such input"),
        ("internal", RequestOutcome.SERVER_ERROR, 2, "UNKNOWN: Unexpected <class 'RuntimeError'>: boom"),
    ],
)
def test_the_status_of_a_call(port, model, outcome, status, message):
    ran = run(grpc_plan(port, [unary(model)], requests=4))
    assert ran.outcomes == {outcome: 4}
    assert set(ran.records["status"].tolist()) == {status}
    assert set(ran.errors) == {message}


def test_huge_trailers(port):
    assert run(grpc_plan(port, [unary("huge_trailers")], ClosedLoop(2), requests=6)).outcomes == {RequestOutcome.OK: 6}


def test_an_unknown_method_is_an_error_of_the_client(port):
    request = PreparedRequest(0, b"/inference.GRPCInferenceService/Other", b"")
    ran = run(grpc_plan(port, [unary("echo"), request], requests=10))
    assert ran.outcomes == {RequestOutcome.OK: 5, RequestOutcome.CLIENT_ERROR: 5}


def test_large_tensors_keep_to_the_windows(port):
    size = 3_000_000
    ran = run(grpc_plan(port, [unary("echo", bytes(size))], ClosedLoop(3), requests=6))
    assert ran.outcomes == {RequestOutcome.OK: 6}
    assert (ran.records["received_bytes"] > size).all()


@pytest.mark.parametrize(("model", "responses"), [("one", 1), ("tokens", 5)])
def test_requests_of_streams(port, model, responses):
    ran = run(grpc_plan(port, [streamed(model)], ClosedLoop(4), requests=20))
    assert ran.outcomes == {RequestOutcome.OK: 20}
    assert (ran.records["responses"] == responses).all()
    assert len(ran.chunks) == 20 * responses
    for row in ran.records:
        times = ran.chunks["received_ns"][row["chunks_from"] :][:responses]
        assert row["sent_ns"] <= row["first_ns"] == times[0]
        assert times[-1] <= row["done_ns"]
        assert (np.diff(times) >= 0).all()
    assert set(ran.chunks["characters"].tolist()) == {2}


@pytest.mark.parametrize(
    ("model", "outcome", "message"),
    [
        ("failing", RequestOutcome.SERVER_ERROR, REASON),
        ("aborted", RequestOutcome.REJECTED, f"RESOURCE_EXHAUSTED: {REASON}"),
        ("ended", RequestOutcome.CONNECTION_ERROR, "the server ended the stream before the answer was complete"),
    ],
)
def test_errors_of_streams(port, model, outcome, message):
    ran = run(grpc_plan(port, [streamed(model)], ClosedLoop(2), requests=6))
    assert ran.outcomes == {outcome: 6}
    assert set(ran.errors) == {message}
