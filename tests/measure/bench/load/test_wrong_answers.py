"""Answers of status 200 that are not answers of the model, from servers that send such bytes."""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conch.domain.triton_messages import service_pb2
from conch.measure.bench.generator import AnswerCheck, ClosedLoop, PreparedRequest, ResponseKind
from conch.measure.bench.inputs.answer_check import GenerateAnswerCheck, GrpcAnswerCheck, HttpAnswerCheck
from conch.measure.bench.load.connection import KnownAnswers
from conch.measure.bench.records import RequestOutcome
from conch.measure.bench.targets.target import TargetModel, TensorMetadata
from tests.measure.bench.cli.bench_command import run_bench
from tests.measure.bench.load.grpc_peer import grpc_peer
from tests.measure.bench.load.grpc_plans import grpc_plan, streamed, unary
from tests.measure.bench.load.running import plan, run
from tests.measure.bench.load.servers import HEAD, answering, read_request, serving
from tests.measure.bench.targets.odd_servers import as_json, scripted

MODEL = TargetModel("m", "", outputs=(TensorMetadata("y", "FP32", (-1, 2)), TensorMetadata("s", "BYTES", (1,))))
PAGE = b"<!DOCTYPE html><html><body>502 Bad Gateway</body></html>"


def output(name: str, datatype: str, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **more}


def answer(*outputs: dict[str, Any], name: str = "m", **more: Any) -> bytes:
    return json.dumps({"model_name": name, "model_version": "1", "outputs": outputs, **more}).encode()


Y = output("y", "FP32", [1, 2], data=[1, 2])
S = output("s", "BYTES", [1], data=["a"])
GOOD = answer(Y, S)
RAW_Y = output("y", "FP32", [1, 2], parameters={"binary_data_size": 8})
RAW_S = output("s", "BYTES", [1], parameters={"binary_data_size": 5})
STRING = struct.pack("<I", 1) + b"a"
RAW = answer(RAW_Y, RAW_S) + bytes(8) + STRING
SHARED = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
WRONG_JSON = [
    (b"", "not valid JSON"),
    (PAGE, "not valid JSON: b'<!DOCTYPE html>"),
    (b"[]", "not a JSON object"),
    (GOOD[:-10], "not valid JSON"),
    (b'{"error": "out of memory"}', "an error in an answer of status 200: 'out of memory'"),
    (b'{"outputs": 5}', "no outputs"),
    (b'{"outputs": [5]}', "not a JSON object"),
    (answer(Y), "output 's' is missing"),
    (answer(Y, S, name="other"), "of model 'other', not of 'm'"),
    (answer({**Y, "datatype": "INT64"}, S), "output 'y' is 'INT64', not FP32"),
    (answer({**Y, "data": [1]}, S), "output 'y' has 1 elements for the shape [1, 2]"),
    (answer({**Y, "data": [[1, 2], [3, 4]]}, S), "output 'y' has 2 elements"),
    (answer({**Y, "shape": [-1, 2]}, S), "the shape [-1, 2]"),
    (answer({**Y, "shape": 3}, S), "no name, datatype or shape"),
    (answer({**Y, "data": None}, S), "output 'y' has no data"),
    (RAW[:-1], "output 's' is cut off: 4 of 5 bytes"),
    (RAW[:-5] + b"\0", "output 's' is cut off: 1 of 5 bytes"),
    (RAW + b"x", "1 bytes more"),
    (answer({**RAW_Y, "shape": [2, 2]}, RAW_S) + bytes(13), "output 'y' has 8 bytes for the shape [2, 2]"),
]


def test_right_answers_have_no_problem() -> None:
    check = HttpAnswerCheck(MODEL)
    nested = answer({**Y, "data": [[1, 2]]}, S)
    shared = answer({"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": SHARED}, S)
    unnamed = json.dumps({"outputs": [Y, S]}).encode()
    assert [check.problem(body) for body in (GOOD, RAW, nested, shared, unnamed)] == [""] * 5


@pytest.mark.parametrize(("body", "problem"), WRONG_JSON)
def test_wrong_answers_over_http_say_what_is_wrong(body: bytes, problem: str) -> None:
    assert problem in HttpAnswerCheck(MODEL).problem(body)


def grpc_answer(change: Callable[[Any], object] = lambda _: None) -> bytes:
    message = service_pb2.ModelInferResponse(model_name="m", model_version="1")
    message.outputs.add(name="y", datatype="FP32", shape=[1, 2])
    message.outputs.add(name="s", datatype="BYTES", shape=[1])
    message.raw_output_contents.extend([bytes(8), STRING])
    change(message)
    return bytes(message.SerializeToString())


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"\xff\xff", "not a ModelInferResponse"),
        (b"", "output 'y' is missing"),
        (grpc_answer(lambda message: message.outputs.pop()), "1 outputs and contents of 2"),
        (grpc_answer(lambda message: setattr(message, "model_name", "other")), "of model 'other'"),
        (grpc_answer(lambda message: message.raw_output_contents.__setitem__(0, b"1")), "has 1 bytes for the shape"),
        (grpc_answer(lambda message: message.ClearField("raw_output_contents")), "output 'y' has no contents"),
    ],
)
def test_wrong_answers_over_grpc_say_what_is_wrong(body: bytes, problem: str) -> None:
    assert GrpcAnswerCheck(MODEL).problem(grpc_answer()) == ""
    assert problem in GrpcAnswerCheck(MODEL).problem(body)


def test_generate_has_one_of_the_outputs() -> None:
    check = GenerateAnswerCheck(MODEL)
    assert check.problem(b'{"model_name": "m", "y": [1, 2]}') == ""
    assert "none of the outputs y, s" in check.problem(b'{"model_name": "m", "text_output": "a"}')


class Counted(AnswerCheck):
    def __init__(self) -> None:
        self.bodies = 0

    def problem(self, body: bytes) -> str:
        self.bodies += 1
        return HttpAnswerCheck(MODEL).problem(body)


def test_few_answers_are_parsed_and_each_that_looks_different() -> None:
    check = Counted()
    known = KnownAnswers(check)
    assert [known.problem(RAW, number == 0) for number in range(1000)] == [""] * 1000
    assert check.bodies < 20
    assert all(known.problem(body, False) for body, _ in WRONG_JSON)


def alternating(*answers: bytes) -> Any:
    """Return a handler that sends answers in turn, each with its length."""

    def handle(peer: Any) -> None:
        count = 0
        while read_request(peer):
            body = answers[count % len(answers)]
            count += 1
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    return handle


def test_wrong_answers_among_right_ones_are_counted() -> None:
    with serving(alternating(GOOD, GOOD, PAGE, RAW)) as port:
        load = plan(port, [PreparedRequest(0, HEAD, b"{}")], ClosedLoop(1), requests=400)
        ran = run(replace(load, check=HttpAnswerCheck(MODEL)))
    assert ran.outcomes == {RequestOutcome.OK: 300, RequestOutcome.WRONG_ANSWER: 100}
    assert all("<!DOCTYPE html>" in message for message in ran.errors)


@pytest.mark.parametrize(("request_of", "model"), [(unary, "echo"), (streamed, "one")])
def test_wrong_answers_of_a_grpc_server_are_counted(request_of: Callable[[str], PreparedRequest], model: str) -> None:
    right = TargetModel(model, outputs=(TensorMetadata("INPUT0", "BYTES", (1,)),))
    with grpc_peer() as port:
        for check, outcome, problem in (
            (GrpcAnswerCheck(right), RequestOutcome.OK, ""),
            (GrpcAnswerCheck(replace(right, name="x")), RequestOutcome.WRONG_ANSWER, f"of model '{model}', not of 'x'"),
            (GrpcAnswerCheck(replace(right, outputs=MODEL.outputs)), RequestOutcome.WRONG_ANSWER, "'y' is missing"),
        ):
            load = grpc_plan(port, [request_of(model)], ClosedLoop(3), requests=200)
            ran = run(replace(load, check=check))
            assert ran.outcomes == {outcome: 200}
            assert all(problem in message for message in ran.errors)


def test_events_of_another_model_make_a_stream_wrong() -> None:
    event = b'data: {"model_name": "other", "y": 1}\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(event)
    with serving(answering(head + event)) as port:
        requests = [PreparedRequest(0, HEAD, b"{}", ResponseKind.GENERATE_STREAM)]
        ran = run(replace(plan(port, requests, requests=3), check=GenerateAnswerCheck(MODEL)))
    assert ran.outcomes == {RequestOutcome.WRONG_ANSWER: 3}


@pytest.mark.slow
@pytest.mark.parametrize("lie", [PAGE, answer(Y, S, name="other"), b'{"error": "x"}'], ids=["page", "model", "error"])
def test_a_server_that_lies_has_no_success(lie: bytes, tmp_path: Path) -> None:
    metadata = {"name": "m", "platform": "t", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}]}
    metadata["outputs"] = [
        {"name": declared.name, "datatype": declared.datatype, "shape": declared.shape} for declared in MODEL.outputs
    ]
    routes = {
        "/v2": as_json({"name": "test", "version": "1"}),
        "/v2/models/m": as_json(metadata),
        "/v2/models/m/infer": (200, {"content-type": "application/json"}, lie),
    }
    with scripted(routes) as address:
        done = run_bench(tmp_path, address, "m", "--concurrency=2", "--warm-up=50ms", "--requests=20")
    assert done.status == 1
    assert set(done.measurement["outcomes"]) <= {"wrong_answer", "unfinished"}
    assert "no-success" in done.codes
