"""gRPC against a real Conch server: tensors, checked answers, decoupled models, sequences over streams, scripts."""

from collections.abc import Iterator

import pytest
from tritonclient.grpc import service_pb2

from conch.measure.bench.generator import (
    Answer,
    ClosedLoop,
    ExpectedAnswer,
    PreparedRequest,
    ResponseKind,
    Script,
    ScriptSource,
)
from conch.measure.bench.records import RequestOutcome
from tests.measure.bench.load.grpc_plans import STREAM_PATH, UNARY_PATH, grpc_plan
from tests.measure.bench.load.running import run
from tests.support.models import tensor, write_identity, write_python
from tests.support.server_process import ConchProcess

REPEAT = """
sender = request.get_response_sender()
for number in range(int(request.inputs()[0].as_numpy().ravel()[0])):
    text = np.array([f"<{number}>"], dtype=object)
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", text)]))
sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
SUM = """
start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().ravel()[0]
value = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
self.sum = value if start else self.sum + value
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", self.sum)])
"""
CONTROL = 'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }'
LENGTH = 5


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    root = tmp_path_factory.mktemp("models")
    write_identity(root, "echo", "INT32", -1)
    write_python(
        root,
        "repeat",
        "model_transaction_policy { decoupled: true } "
        f"input {tensor('INPUT0', 'INT32', 1)} output {tensor('OUTPUT0', 'STRING', 1)}",
        REPEAT,
    )
    write_python(
        root,
        "sum",
        f"sequence_batching {{ max_sequence_idle_microseconds: 60000000 {CONTROL} }} "
        f"input {tensor('INPUT0', 'INT32', 1)} output {tensor('OUTPUT0', 'INT32', 1)}",
        SUM,
    )
    with ConchProcess(root, log=tmp_path_factory.mktemp("log") / "log") as server:
        yield int(server.grpc.rpartition(":")[2])


class Text(ExpectedAnswer):
    def __init__(self, text: str) -> None:
        self.text = text

    def difference(self, answer: Answer) -> str:
        return "" if answer.text == self.text else f"{answer.text!r} instead of {self.text!r}"


class Raw(ExpectedAnswer):
    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def difference(self, answer: Answer) -> str:
        content = service_pb2.ModelInferResponse.FromString(answer.body).raw_output_contents[0]
        return "" if content == self.raw else f"{content!r} instead of {self.raw!r}"


def request(model: str, value: int, stream: bool = False, expected: ExpectedAnswer | None = None, **parameters: int):
    message = service_pb2.ModelInferRequest(model_name=model)
    message.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    message.raw_input_contents.append(value.to_bytes(4, "little"))
    for name, number in parameters.items():
        message.parameters[name].int64_param = number
    path, kind = (STREAM_PATH, ResponseKind.GRPC_STREAM) if stream else (UNARY_PATH, ResponseKind.UNARY)
    return PreparedRequest(0, path, message.SerializeToString(), kind, expected=expected)


@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_checked(port, stream):
    right = [request("echo", value, stream, Raw(value.to_bytes(4, "little"))) for value in (1, 2)]
    wrong = request("echo", 3, stream, Raw(b"nope"))
    ran = run(grpc_plan(port, [*right, wrong], ClosedLoop(3), requests=12))
    assert ran.outcomes == {RequestOutcome.OK: 8, RequestOutcome.WRONG_ANSWER: 4}
    assert set(ran.errors) == {"b'\\x03\\x00\\x00\\x00' instead of b'nope'"}


def test_a_decoupled_model(port):
    requests = [request("repeat", count, True, Text("".join(f"<{n}>" for n in range(count)))) for count in (0, 1, 7)]
    ran = run(grpc_plan(port, requests, ClosedLoop(3), requests=12))
    assert ran.outcomes == {RequestOutcome.OK: 12}, ran.errors
    assert sorted(set(ran.records["responses"].tolist())) == [0, 1, 7]
    assert len(ran.chunks) == 4 * 8


def test_models_that_are_not_there(port):
    ran = run(grpc_plan(port, [request("other", 1), request("other", 1, True)], ClosedLoop(1), requests=4))
    assert ran.outcomes == {RequestOutcome.CLIENT_ERROR: 2, RequestOutcome.SERVER_ERROR: 2}
    assert all("other" in message for message in ran.errors)


class Sums(Script):
    """A sequence that sends each sum back: 1, then 1 + 1, then 2 + 2."""

    needs_answers = True

    def __init__(self, session: int) -> None:
        self.session = session
        self.sent = 0

    def next(self, previous: Answer | None) -> PreparedRequest | None:
        if self.sent == LENGTH:
            return None
        value = 1
        if previous is not None:
            response = service_pb2.ModelInferResponse.FromString(previous.body)
            value = int.from_bytes(response.raw_output_contents[0], "little")
        expected = Raw((1 << self.sent).to_bytes(4, "little"))
        self.sent += 1
        flags = {"sequence_id": self.session + 1, "sequence_start": self.sent == 1, "sequence_end": self.sent == LENGTH}
        made = request("sum", value, True, expected)
        message = service_pb2.ModelInferRequest.FromString(made.body)
        message.parameters["sequence_id"].int64_param = flags["sequence_id"]
        for name in ("sequence_start", "sequence_end"):
            message.parameters[name].bool_param = flags[name]
        return PreparedRequest(0, made.head, message.SerializeToString(), made.response, expected=expected)


class SumSource(ScriptSource):
    def script(self, session: int) -> Script:
        return Sums(session)


def test_sequences_over_streams(port):
    ran = run(grpc_plan(port, SumSource(), ClosedLoop(1), requests=4 * LENGTH))
    assert ran.outcomes == {RequestOutcome.OK: 4 * LENGTH}, ran.errors
