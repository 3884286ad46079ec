"""Decoupled models over gRPC streams with the official client, alone and as steps of ensembles."""

import json
import queue
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from tests.support.models import tensor, write_ensemble, write_python
from tests.support.server_process import ConchProcess

# The first number selects what it does; otherwise it is the number of responses. A second request lets it continue.
SCRIPT = """
word = int(request.inputs()[0].as_numpy().ravel()[0])
sender = request.get_response_sender()
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
def out(number):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([number], np.int32))])
if word >= 0:
    for number in range(word):
        sender.send(out(number))
    sender.send(flags=FINAL)
elif word == -1:  # an error midway
    sender.send(out(0))
    error = pb_utils.TritonError("midway", pb_utils.TritonError.NOT_FOUND)
    sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
elif word == -7:  # errors among responses
    for number in range(2):
        sender.send(out(number))
        error = pb_utils.TritonError(f"error {number}", pb_utils.TritonError.NOT_FOUND)
        sender.send(pb_utils.InferenceResponse(error=error))
    sender.send(out(2))
    sender.send(flags=FINAL)
elif word == -8:  # one error, and the end by itself
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("alone", pb_utils.TritonError.NOT_FOUND)))
    sender.send(flags=FINAL)
elif word == -2:  # dropped
    sender.send(out(0))
elif word == -3:  # after the end
    sender.send(out(7), flags=FINAL)
    try:
        sender.send(out(8))
    except pb_utils.TritonModelException as error:
        pb_utils.Logger.log_info("too late: " + str(error))
elif word == -4:  # kept until asked for
    self.kept = sender
elif word == -5:
    sender.send(out(1), flags=FINAL)
    self.kept.send(out(2), flags=FINAL)
elif word == -6:  # until it is cancelled
    import threading
    def run():
        while not sender.is_cancelled():
            sender.send(out(0))
            time.sleep(0.001)
        sender.send(flags=FINAL)
        pb_utils.Logger.log_info("noticed the cancellation")
    threading.Thread(target=run).start()
"""

PLUS_100 = """
value = request.inputs()[0].as_numpy()
if value[0] == 3:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("not three", pb_utils.TritonError.INVALID_ARG))
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", value + 100)])
"""

# Calls the script, and answers with all its responses.
CALLER = """
inputs = [pb_utils.Tensor("INPUT0", request.inputs()[0].as_numpy())]
told = []
for response in pb_utils.InferenceRequest(
    model_name="script", requested_output_names=["OUTPUT0"], inputs=inputs
).exec(decoupled=True):
    if response.has_error():
        told.append(response.error().message())
    else:
        told += [str(tensor.as_numpy()[0]) for tensor in response.output_tensors()]
return pb_utils.InferenceResponse([pb_utils.Tensor("TOLD", np.array([", ".join(told)], dtype=object))])
"""

ONE_NUMBER = f"input {tensor('INPUT0', 'INT32', 1)} output {tensor('OUTPUT0', 'INT32', 1)}"


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("decoupled")
    models = root / "models"
    write_python(models, "script", f"model_transaction_policy {{ decoupled: true }} {ONE_NUMBER}", SCRIPT)
    path = models / "script" / "1" / "model.py"
    path.write_text(path.read_text().replace("return [self.answer", "[self.answer"))
    write_python(models, "plus", f"{ONE_NUMBER} instance_group {{ count: 2 }}", PLUS_100)
    write_python(models, "caller", f"input {tensor('INPUT0', 'INT32', 1)} output {tensor('TOLD', 'STRING', 1)}", CALLER)
    ends = f"input {tensor('IN', 'INT32', 1)}", f"output {tensor('OUT', 'INT32', 1)}"
    steps = ("script", {"INPUT0": "IN"}, {"OUTPUT0": "x"}), ("plus", {"INPUT0": "x"}, {"OUTPUT0": "OUT"})
    write_ensemble(models, "stream", *ends, *steps)
    write_ensemble(models, "bounded", *ends, *steps)
    config = models / "bounded" / "config.pbtxt"
    config.write_text(config.read_text().replace("step {", "max_inflight_requests: 2 step {", 1))
    write_ensemble(
        models,
        "nested",
        *ends,
        ("stream", {"IN": "IN"}, {"OUT": "x"}),
        ("plus", {"INPUT0": "x"}, {"OUTPUT0": "OUT"}),
    )
    with ConchProcess(models, log=root / "conch.log") as server:
        yield server


class Stream:
    """An open stream, its messages in a queue as (id, number or None, final) or (id, error)."""

    def __init__(self, url: str) -> None:
        self.client = grpc.InferenceServerClient(url)
        self.answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(lambda result, error: self.answers.put((result, error)))

    def ask(self, model: str, number: int, request_id: str = "") -> None:
        wanted = grpc.InferInput("INPUT0" if model == "script" else "IN", [1], "INT32")
        wanted.set_data_from_numpy(np.array([number], np.int32))
        self.client.async_stream_infer(model, [wanted], request_id=request_id, enable_empty_final_response=True)

    def next(self) -> tuple[Any, ...]:
        result, error = self.answers.get(timeout=60)
        if error is not None:
            return (error.message(),)
        response = result.get_response()
        final = response.parameters["triton_final_response"].bool_param
        outputs = response.outputs
        return (response.id, int(result.as_numpy(outputs[0].name)[0]) if outputs else None, final)

    def to_the_end(self) -> list[tuple[Any, ...]]:
        """Return the messages up to the final one."""
        messages = [self.next()]
        while not messages[-1][2]:
            messages.append(self.next())
        return messages


def failures(conch: ConchProcess, model: str) -> int:
    with http.InferenceServerClient(conch.http) as client:
        return int(client.get_inference_statistics(model)["model_stats"][0]["inference_stats"]["fail"]["count"])


@contextmanager
def stream(conch: ConchProcess) -> Iterator[Stream]:
    stream = Stream(conch.grpc)
    try:
        yield stream
    finally:
        stream.client.stop_stream(cancel_requests=True)
        stream.client.close()


@pytest.mark.parametrize(("model", "plus"), [("script", 0), ("stream", 100), ("bounded", 100), ("nested", 200)])
def test_each_response_comes_in_order_and_then_the_end(conch: ConchProcess, model: str, plus: int) -> None:
    with stream(conch) as opened:
        for count in (0, 1, 3):
            opened.ask(model, count, "r")
            messages = opened.to_the_end()
            # The last one is final itself if the decoupled model has ended before it is through an ensemble.
            if messages[-1][1] is None:
                messages.pop()
            assert [message[:2] for message in messages] == [("r", plus + i) for i in range(count)]


@pytest.mark.parametrize(("model", "plus"), [("script", 0), ("stream", 100), ("bounded", 100)])
def test_a_final_flag_with_the_data_stays_with_them(conch: ConchProcess, model: str, plus: int) -> None:
    with stream(conch) as opened:
        opened.ask(model, -3, "r")
        assert opened.next() == ("r", 7 + plus, True)
        opened.ask(model, 0, "next")  # what the model sent after the end has not come
        assert opened.next() == ("next", None, True)
    conch.until_logged("too late: Unable to send response. Response sender has been closed.")


@pytest.mark.parametrize(("model", "plus"), [("script", 0), ("stream", 100)])
def test_requests_may_be_answered_out_of_order(conch: ConchProcess, model: str, plus: int) -> None:
    with stream(conch) as opened:
        opened.ask(model, -4, "early")
        opened.ask(model, -5, "late")
        answers = {opened.next(), opened.next()}
        assert answers == {("late", 1 + plus, True), ("early", 2 + plus, True)}


@pytest.mark.parametrize(
    ("model", "number", "said"),
    [
        ("script", -1, "midway"),
        ("script", -2, "dropped the response sender before sending the final flag"),
        ("stream", -1, "in ensemble 'stream', midway (step 'script')"),
        ("stream", -2, "in ensemble 'stream', Model instance 'script_0' dropped the response sender"),
        ("stream", 5, "in ensemble 'stream', not three (step 'plus')"),
        ("bounded", 5, "in ensemble 'bounded', not three (step 'plus')"),
        ("nested", 5, "in ensemble 'nested', in ensemble 'stream', not three (step 'plus') (step 'stream')"),
    ],
)
def test_an_error_midway_is_the_end(conch: ConchProcess, model: str, number: int, said: str) -> None:
    with stream(conch) as opened:
        opened.ask(model, number)
        while len(message := opened.next()) == 3:
            assert message[2] is False
        assert said in message[0]
        opened.ask(model, 0, "next")
        assert opened.next() == ("next", None, True)


def test_responses_after_an_error_are_delivered(conch: ConchProcess) -> None:
    before = failures(conch, "script")
    with stream(conch) as opened:
        opened.ask("script", -7, "r")
        answers = [opened.next() for _ in range(6)]
    assert answers == [("r", 0, False), ("error 0",), ("r", 1, False), ("error 1",), ("r", 2, False), ("r", None, True)]
    assert failures(conch, "script") == before + 1
    with http.InferenceServerClient(conch.http) as client:
        numbers = http.InferInput("INPUT0", [1], "INT32")
        numbers.set_data_from_numpy(np.array([-7], np.int32))
        told = client.infer("caller", [numbers]).as_numpy("TOLD")
    assert told.tolist() == [b"0, error 0, 1, error 1, 2"]


def test_an_ensemble_ends_with_the_first_error_of_a_step(conch: ConchProcess) -> None:
    with stream(conch) as opened:
        opened.ask("stream", -7, "r")
        while len(message := opened.next()) == 3:
            assert message[2] is False
        assert "in ensemble 'stream', error 0 (step 'script')" in message[0]
        opened.ask("stream", 0, "next")
        assert opened.next() == ("next", None, True)


def test_generate_takes_errors_for_responses(conch: ConchProcess) -> None:
    def ask(path: str, number: int) -> tuple[int, bytes]:
        connection = HTTPConnection(conch.http, timeout=60)
        connection.request("POST", f"/v2/models/script/{path}", json.dumps({"INPUT0": number}))
        reply = connection.getresponse()
        with closing(connection):
            return reply.status, reply.read()

    status, events = ask("generate_stream", -7)
    told = [json.loads(event.removeprefix(b"data: ")) for event in events.split(b"\n\n") if event]
    assert status == 200
    assert [event.get("OUTPUT0", event.get("error")) for event in told] == [0, "error 0", 1, "error 1", 2]
    status, body = ask("generate", -7)
    assert status == 400
    assert "exactly 1 response" in json.loads(body)["error"]
    assert ask("generate", -8) == (400, b'{"error":"alone"}')
    assert ask("generate_stream", -8) == (400, b'data: {"error":"alone"}\n\n')


@pytest.mark.parametrize("model", ["script", "stream", "bounded", "nested"])
def test_a_client_that_goes_reaches_the_model(conch: ConchProcess, model: str) -> None:
    before = conch.text.count("noticed the cancellation")
    with stream(conch) as opened:
        opened.ask(model, -6)
        assert opened.next()[1] is not None
    conch.until_logged(f"(?s)(noticed the cancellation.*){{{before + 1}}}")


@pytest.mark.parametrize("model", ["script", "stream", "bounded", "nested"])
def test_without_a_stream_they_are_refused_in_tritons_words(conch: ConchProcess, model: str) -> None:
    name = "INPUT0" if model == "script" else "IN"
    over_http = http.InferInput(name, [1], "INT32")
    over_http.set_data_from_numpy(np.zeros(1, np.int32))
    over_grpc = grpc.InferInput(name, [1], "INT32")
    over_grpc.set_data_from_numpy(np.zeros(1, np.int32))
    with http.InferenceServerClient(conch.http) as client:
        with pytest.raises(InferenceServerException) as raised:
            client.infer(model, [over_http])
        assert (
            raised.value.message() == "HTTP end point doesn't support models with decoupled transaction policy: "
            f"use /v2/models/{model}/generate_stream, or ModelStreamInfer over gRPC"
        )
        assert client.get_model_config(model)["model_transaction_policy"] == {"decoupled": True}
    with grpc.InferenceServerClient(conch.grpc) as client:
        with pytest.raises(InferenceServerException) as raised:
            client.infer(model, [over_grpc])
        assert (
            raised.value.message() == "ModelInfer RPC doesn't support models with decoupled transaction policy: "
            f"use ModelStreamInfer, or /v2/models/{model}/generate_stream over HTTP"
        )
        assert raised.value.status() == "StatusCode.UNIMPLEMENTED"


def test_all_phases_are_counted(conch: ConchProcess) -> None:
    """As in Triton, where an execution sends its responses before it returns."""
    with grpc.InferenceServerClient(conch.grpc) as client:
        with stream(conch) as opened:
            opened.ask("script", 3)
            opened.to_the_end()
        (model,) = client.get_inference_statistics("script").model_stats
        spent = model.inference_stats
        phases = (spent.queue, spent.compute_input, spent.compute_infer, spent.compute_output)
        assert [phase.count for phase in phases] == [spent.success.count] * 4
        assert all(phase.ns for phase in phases)
        assert sum(phase.ns for phase in phases) <= spent.success.ns


def test_steps_are_counted_each_for_itself_and_add_up(conch: ConchProcess) -> None:
    with grpc.InferenceServerClient(conch.grpc) as client:

        def counted() -> list[tuple[int, int, int, int]]:
            every = (client.get_inference_statistics(name).model_stats[0] for name in ("stream", "script", "plus"))
            return [
                (s.success.count, s.queue.ns, s.compute_input.ns, s.compute_infer.ns)
                for s in (model.inference_stats for model in every)
            ]

        before = counted()
        with stream(conch) as opened:
            opened.ask("stream", 3)
            opened.to_the_end()
        ensemble, script, plus = np.array(counted()) - np.array(before)
        assert (ensemble[0], script[0], plus[0]) == (1, 1, 3)
        assert list(ensemble[1:]) == list(script[1:] + plus[1:])
