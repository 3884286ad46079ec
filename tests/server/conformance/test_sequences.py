"""Sequences with the official clients, over HTTP, gRPC and streams: state in the model, and implicit state."""

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.server.backends.onnxruntime.onnx_models import write_model
from tests.support.models import tensor, write_ensemble, write_python
from tests.support.server_process import ConchProcess

# A pause between two requests is not to end a sequence.
IDLE = "max_sequence_idle_microseconds: 60000000"
CONTROLS = """
control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 0, 1 ] } }
control_input { name: "END" control { kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] } }
"""
CORRID = 'control_input {{ name: "CORRID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_{} }} }}'
TENSORS = f"max_batch_size: 4 input {tensor('INPUT', 'INT32', 1)} output {tensor('OUTPUT', 'INT32', 1)}"

# Keeps a sum for each sequence; -1 ends the process, which gets another.
ACCUMULATE = """
value, start, end, ready, key = (
    pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()
    for name in ("INPUT", "START", "END", "READY", "CORRID")
)
if not ready:
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.zeros((1, 1), np.int32))])
if value == -1:
    os._exit(1)
assert request.correlation_id() == (key.decode() if isinstance(key, bytes) else key)
assert bool(request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START) == bool(start)
if start:
    self.sums[key] = 0
self.sums[key] += value
total = self.sums.pop(key) if end else self.sums[key]
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[total]], np.int32))])
"""
SUMS = """
def initialize(self, args):
    self.sums = {}
"""
# Has the server keep the sum.
ADD = """
value, total = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT", "SUM_IN"))
total = total + value
outputs = {"OUTPUT": total, "SUM_OUT": total.reshape(1, -1) if value.item() != 99 else np.zeros((1, 2), np.int32)}
return pb_utils.InferenceResponse([pb_utils.Tensor(*output) for output in outputs.items()])
"""
STATE = (
    'state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ] '
    'initial_state { name: "begin" data_type: TYPE_INT32 dims: [ 1 ] data_file: "begin" } }'
)

# Adds the input to itself as often as INPUT says, one turn each; INPUT 77 wants to answer and come again.
TURNS = """
turns = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy().item()
key = request.correlation_id()
if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
    self.sums[key] = 0
self.sums[key] += 1
response = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[self.sums[key]]], np.int32))])
if turns == 77 or self.sums[key] < turns:
    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    return response if turns == 77 else None
return response
"""
# The same, with a response in every turn.
TOLD_TURNS = """
sender = request.get_response_sender()
turns = request.inputs()[0].as_numpy().item()
total = self.sums[request.correlation_id()] = self.sums.get(request.correlation_id(), 0) + 1
sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([[total]], np.int32))]))
if total < turns:
    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
else:
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def write_onnx(root: Path, name: str, strategy: str) -> None:
    """The sum again: START begins it, the server keeps it. Inputs and outputs are the model's to say."""
    make, integer = onnx.helper.make_node, onnx.TensorProto.INT32
    nodes = [
        make("Cast", ["START"], ["starts"], to=onnx.TensorProto.BOOL),
        make("Add", ["INPUT", "SUM_IN"], ["more"]),
        make("Where", ["starts", "INPUT", "more"], ["SUM_OUT"]),
        make("Identity", ["SUM_OUT"], ["OUTPUT"]),
    ]
    start, _, _ = CONTROLS.strip().splitlines()
    state = 'state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_INT32 dims: [ 1 ] }'
    write_model(
        root / name,
        nodes,
        {tensor: (integer, [None, 1]) for tensor in ("INPUT", "START", "SUM_IN")},
        {tensor: (integer, [None, 1]) for tensor in ("OUTPUT", "SUM_OUT")},
        config=f'backend: "onnxruntime" max_batch_size: 4 sequence_batching {{ {IDLE} {strategy} {start} {state} }}',
    )


def write_models(root: Path) -> None:
    """Write every model that a test here names."""
    for name, strategy, kind in (
        ("oldest", "oldest { max_candidate_sequences: 4 }", "UINT64"),
        ("direct", "direct { }", "INT32"),
        ("text", "oldest { max_candidate_sequences: 4 }", "STRING"),
        ("narrow", "oldest { max_candidate_sequences: 1 }", "UINT64"),
    ):
        batching = f"sequence_batching {{ {IDLE} {strategy} {CONTROLS} {CORRID.format(kind)} }}"
        write_python(root, name, f"{TENSORS} {batching}", ACCUMULATE, more=SUMS)
    write_onnx(root, "onnx_oldest", "oldest { max_candidate_sequences: 4 }")
    write_onnx(root, "onnx_direct", "direct { max_queue_delay_microseconds: 100 minimum_slot_utilization: 0.5 }")
    write_ensemble(
        root,
        "ensemble",
        f"max_batch_size: 4 input {tensor('INPUT', 'INT32', 1)}",
        f"output {tensor('OUTPUT', 'INT32', 1)}",
        ("oldest", {"INPUT": "INPUT"}, {"OUTPUT": "between"}),
        ("onnx_direct", {"INPUT": "between"}, {"OUTPUT": "OUTPUT"}),
    )
    turns = "sequence_batching { oldest { max_candidate_sequences: 4 } iterative_sequence: true }"
    write_python(root, "turns", f"{TENSORS} {turns}", TURNS, more=SUMS)
    write_python(root, "once", TENSORS, TURNS, more=SUMS)
    write_python(
        root,
        "told_turns",
        f"{TENSORS} {turns} model_transaction_policy {{ decoupled: true }}",
        TOLD_TURNS,
        more=SUMS + "def execute(self, requests):\n    for request in requests:\n        self.answer(request)\n",
    )
    write_python(root, "implicit", f"{TENSORS} sequence_batching {{ {IDLE} {STATE} }}", ADD)
    (root / "implicit" / "initial_state").mkdir()
    (root / "implicit" / "initial_state" / "begin").write_bytes(np.array([100], np.int32).tobytes())


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("sequences")
    write_models(root)
    with ConchProcess(root, log=tmp_path_factory.mktemp("log") / "log") as process:
        yield process


# Asks one thing: model, value, sequence_id=, sequence_start=, sequence_end= → the sum.
Ask = Callable[..., int]


@pytest.fixture(params=["http", "grpc", "stream"])
def ask(conch: ConchProcess, request: pytest.FixtureRequest) -> Iterator[Ask]:
    module: Any = http_client if request.param == "http" else grpc_client
    client = module.InferenceServerClient(conch.http if request.param == "http" else conch.grpc)
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    if request.param == "stream":
        client.start_stream(lambda result, error: answers.put((result, error)))

    def asked(model: str, value: int, **options: Any) -> int:
        given = module.InferInput("INPUT", [1, 1], "INT32")
        given.set_data_from_numpy(np.array([[value]], np.int32))
        if request.param == "stream":
            client.async_stream_infer(model, [given], **options)
            result, error = answers.get(timeout=60)
            if error is not None:
                raise error
        else:
            result = client.infer(model, [given], **options)
        return int(result.as_numpy("OUTPUT").item())

    yield asked
    client.close()


@pytest.mark.parametrize(
    ("model", "ids"),
    [
        ("oldest", (1007, 1008)),
        ("direct", (5, 2**31 - 1)),
        ("text", ("one", "ähnlich")),
        ("onnx_oldest", (3, "three")),
        ("onnx_direct", (2**63 - 1, "t")),
    ],
)
def test_two_sequences_side_by_side(ask: Ask, model: str, ids: tuple[int | str, int | str]) -> None:
    values, sums = [11, 7, 5, 3, 2, 0, 1], ([], [])
    for position, value in enumerate(values):
        for sign, key, got in zip((1, -2), ids, sums, strict=True):
            flags = {"sequence_start": position == 0, "sequence_end": position == len(values) - 1}
            got.append(ask(model, sign * value, sequence_id=key, **flags))
    assert sums == ([11, 18, 23, 26, 28, 28, 29], [-22, -36, -46, -52, -56, -56, -58])


def test_state_that_the_server_keeps(ask: Ask) -> None:
    got = [
        ask("implicit", value, sequence_id=key, sequence_start=start)
        for key, value, start in ((1, 1, True), (2, 5, True), (1, 2, False), (2, 5, False), (1, 7, True))
    ]
    assert got == [101, 105, 103, 110, 107]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "inference request to model 'oldest' must specify a non-zero or non-empty correlation ID"),
        (
            {"sequence_id": 3},
            (
                "inference request for sequence 3 to model 'oldest' must specify the START flag on the first request "
                "of the sequence"
            ),
        ),
        (
            {"sequence_id": "three", "sequence_start": True},
            "sequence batching control 'CORRID' data-type is 'BYTES', but model 'oldest' expects 'UINT64'",
        ),
        (
            {"sequence_id": "é" * 65, "sequence_start": True},
            "string correlation ID cannot be longer than 128 characters",
        ),
    ],
)
def test_a_request_that_belongs_to_no_sequence_is_refused(ask: Ask, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask("oldest", 1, **options)
    assert said in caught.value.message()


def test_the_status_of_a_refusal_and_a_batch_of_two(conch: ConchProcess) -> None:
    given = http_client.InferInput("INPUT", [2, 1], "INT32")
    given.set_data_from_numpy(np.zeros((2, 1), np.int32))
    with http_client.InferenceServerClient(conch.http) as client, pytest.raises(InferenceServerException) as caught:
        client.infer("oldest", [given], sequence_id=3, sequence_start=True)
    assert caught.value.status() == "400"
    assert caught.value.message() == (
        "inference request to model 'oldest' must specify batch-size 1 due to requirements of sequence batcher"
    )


def test_start_on_a_live_id_starts_again(ask: Ask) -> None:
    assert ask("oldest", 4, sequence_id=21, sequence_start=True) == 4
    assert ask("oldest", 4, sequence_id=21) == 8
    assert ask("oldest", 4, sequence_id=21, sequence_start=True) == 4
    assert ask("oldest", 1, sequence_id=21, sequence_end=True) == 5
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        ask("oldest", 1, sequence_id=21)


def test_state_of_the_wrong_shape_names_both(ask: Ask) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask("implicit", 99, sequence_id=31, sequence_start=True)
    assert "gave state 'SUM_OUT' as INT32[1, 2], sequence_batching.state declares INT32[1, 1]" in caught.value.message()
    assert ask("implicit", 1, sequence_id=31, sequence_end=True) == 101


def test_a_full_house_makes_the_next_sequence_wait_for_an_end(conch: ConchProcess) -> None:
    with grpc_client.InferenceServerClient(conch.grpc) as client, ThreadPoolExecutor(1) as pool:

        def asked(value: int, **options: Any) -> int:
            given = grpc_client.InferInput("INPUT", [1, 1], "INT32")
            given.set_data_from_numpy(np.array([[value]], np.int32))
            return int(client.infer("narrow", [given], **options).as_numpy("OUTPUT").item())

        assert asked(1, sequence_id=1, sequence_start=True) == 1
        with pytest.raises(InferenceServerException, match="timeout of the corresponding sequence has been expired"):
            asked(9, sequence_id=2, sequence_start=True, timeout=1000)
        waiting = pool.submit(asked, 9, sequence_id=2, sequence_start=True, sequence_end=True)
        assert asked(1, sequence_id=1, sequence_end=True) == 2
        assert waiting.result(60) == 9


def test_the_sequences_of_a_dead_process_are_lost_and_that_is_said(conch: ConchProcess, ask: Ask) -> None:
    assert ask("text", 1, sequence_id="here", sequence_start=True) == 1
    with pytest.raises(InferenceServerException, match="is not healthy"):
        ask("text", -1, sequence_id="there", sequence_start=True)
    with pytest.raises(InferenceServerException, match="the one before was lost with its model instance 'text_0'"):
        ask("text", 1, sequence_id="here")
    assert ask("text", 3, sequence_id="here", sequence_start=True, sequence_end=True) == 3


def test_controls_and_states_are_between_server_and_model(conch: ConchProcess) -> None:
    with http_client.InferenceServerClient(conch.http) as client:
        metadata = client.get_model_metadata("implicit")
        assert [tensor["name"] for tensor in metadata["inputs"]] == ["INPUT"]
        assert [tensor["name"] for tensor in metadata["outputs"]] == ["OUTPUT"]
        shown = client.get_model_config("turns")["sequence_batching"]
        assert shown["max_sequence_idle_microseconds"] == 1_000_000
        shown = client.get_model_config("oldest")["sequence_batching"]
        assert shown["oldest"]["preferred_batch_size"] == [4]
        given = http_client.InferInput("INPUT", [1, 1], "INT32")
        given.set_data_from_numpy(np.array([[7]], np.int32))
        result = client.infer("implicit", [given], sequence_id=77, sequence_start=True)
        assert [output["name"] for output in result.get_response()["outputs"]] == ["OUTPUT"]
        outputs = [http_client.InferRequestedOutput("SUM_OUT")]
        with pytest.raises(InferenceServerException, match="unexpected inference output 'SUM_OUT'"):
            client.infer("implicit", [given], sequence_id=77, outputs=outputs)


def test_an_iterative_model_has_a_request_again_and_again(ask: Ask) -> None:
    assert [ask("turns", count) for count in (1, 5, 2)] == [1, 5, 2]


def test_iterative_requests_of_many_clients_take_turns(conch: ConchProcess) -> None:
    with ThreadPoolExecutor(8) as pool:

        def asked(turns: int) -> int:
            given = http_client.InferInput("INPUT", [1, 1], "INT32")
            given.set_data_from_numpy(np.array([[turns]], np.int32))
            with http_client.InferenceServerClient(conch.http) as client:
                return int(client.infer("turns", [given]).as_numpy("OUTPUT").item())

        assert list(pool.map(asked, range(1, 20))) == list(range(1, 20))


def test_an_answer_to_a_request_that_is_to_come_again_is_an_error(ask: Ask) -> None:
    with pytest.raises(
        InferenceServerException,
        match=r"message: Expected a None object in the execute function return list for reschduled request, found",
    ):
        ask("turns", 77)


def test_a_model_that_is_not_iterative_cannot_reschedule(ask: Ask) -> None:
    with pytest.raises(InferenceServerException, match=r"needs sequence_batching \{ iterative_sequence: true \}"):
        ask("once", 2, sequence_id=9, sequence_start=True)


def test_an_iterative_model_may_respond_in_each_turn(conch: ConchProcess) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    given = grpc_client.InferInput("INPUT", [1, 1], "INT32")
    given.set_data_from_numpy(np.array([[3]], np.int32))
    with grpc_client.InferenceServerClient(conch.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("told_turns", [given])
        got = [answers.get(timeout=60) for _ in range(3)]
    assert [error for _, error in got] == [None] * 3
    assert [result.as_numpy("OUTPUT").item() for result, _ in got] == [1, 2, 3]


def test_an_ensemble_hands_the_sequence_on_to_its_steps(ask: Ask) -> None:
    flags = [(True, False), (False, False), (False, True)]
    got = [ask("ensemble", 1, sequence_id=61, sequence_start=start, sequence_end=end) for start, end in flags]
    assert got == [1, 3, 6]  # the sums of the sums


@pytest.mark.parametrize("model", ["oldest", "direct", "onnx_oldest", "onnx_direct"])
def test_thirty_sequences_through_four_slots(conch: ConchProcess, model: str) -> None:
    def run(key: int) -> list[int]:
        got = []
        with http_client.InferenceServerClient(conch.http) as client:
            for value in range(1, 6):
                given = http_client.InferInput("INPUT", [1, 1], "INT32")
                given.set_data_from_numpy(np.array([[value * key]], np.int32))
                flags = {"sequence_start": value == 1, "sequence_end": value == 5}
                result = client.infer(model, [given], sequence_id=key, **flags)
                got.append(int(result.as_numpy("OUTPUT").item()))
        return got

    keys = range(1, 31)
    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(run, keys)) == [[key * part for part in (1, 3, 6, 10, 15)] for key in keys]
