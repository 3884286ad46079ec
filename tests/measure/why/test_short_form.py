"""`X-Conch-Why: 1`: answers of a real server that say where their time went, read by the usual clients."""

import json
import re
import urllib.request
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import openai
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from conch.domain.causes.cause import CAUSES
from tests.support.models import write_identity, write_python, write_scripted
from tests.support.server_process import ConchProcess

ASKED, ELSEWHERE = {"x-conch-why": "1"}, {"x-forwarded-for": "192.0.2.1"}
FAILS = "raise pb_utils.TritonModelException('as asked')"
SPEAKS = {"rules": [{"match": "", "reply": "It rains all day."}]}


@pytest.fixture(scope="module", params=[1, 2], ids=["alone", "frontend-processes"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    models = tmp_path_factory.mktemp("models")
    write_identity(models, "same", "FP32", 1)
    tensors = (
        'input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }'
    )
    write_python(models, "fails", tensors, FAILS)
    write_scripted(models, "words", SPEAKS)
    with ConchProcess(models, f"--frontend-processes={request.param}", log=models.parent / "log") as process:
        yield process


@pytest.fixture
def stub(server: ConchProcess) -> Iterator[service_pb2_grpc.GRPCInferenceServiceStub]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def causes_of(text: str) -> list[str]:
    """The causes in a short form; its first part is the whole."""
    names = [part.partition(";dur=")[0] for part in text.split(", ")]
    assert names[0] == "total"
    assert {*names[1:]} <= {*CAUSES}
    assert all(float(part.partition(";dur=")[2]) >= 0 for part in text.split(", "))
    return names[1:]


def post(server: ConchProcess, path: str, document: dict[str, Any], **headers: str) -> tuple[str | None, str]:
    """The header and the body of an answer."""
    url = f"http://{server.http}{path}"
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(document).encode(), headers), timeout=60
    ) as reply:
        return reply.headers["X-Conch-Why"], reply.read().decode()


def header_of(server: ConchProcess, **headers: str) -> str | None:
    document = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [3]}]}
    header, body = post(server, "/v2/models/same/infer", document, **headers)
    assert json.loads(body)["outputs"][0]["data"] == [3]
    return header


def message(model: str) -> service_pb2.ModelInferRequest:
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="INPUT0", datatype="FP32", shape=[1])
    return service_pb2.ModelInferRequest(
        model_name=model, inputs=[tensor], raw_input_contents=[np.array([3], np.float32).tobytes()]
    )


def trailers_of(call: grpc.Call) -> list[str]:
    return [value for name, value in call.trailing_metadata() if name == "x-conch-why"]


def test_a_header(server: ConchProcess) -> None:
    text = header_of(server, **ASKED)
    assert text is not None
    assert causes_of(text)
    assert header_of(server) is None


def test_only_clients_that_may_read_the_event_log_get_it(
    server: ConchProcess, stub: service_pb2_grpc.GRPCInferenceServiceStub
) -> None:
    assert header_of(server, **ASKED, **ELSEWHERE) is None
    assert header_of(server, **ASKED, Host="models.example") is None
    away = [*ASKED.items(), *ELSEWHERE.items()]
    assert not trailers_of(stub.ModelInfer.with_call(message("same"), metadata=away)[1])
    with grpc.insecure_channel(server.grpc, [("grpc.default_authority", "models.example")]) as channel:
        named = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        assert not trailers_of(named.ModelInfer.with_call(message("same"), metadata=[*ASKED.items()])[1])


def test_trailing_metadata(stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
    answer, call = stub.ModelInfer.with_call(message("same"), metadata=[*ASKED.items()])
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [3]
    (text,) = trailers_of(call)
    assert causes_of(text)
    assert not trailers_of(stub.ModelInfer.with_call(message("same"))[1])


def test_trailing_metadata_of_an_error(stub: service_pb2_grpc.GRPCInferenceServiceStub) -> None:
    with pytest.raises(grpc.RpcError, match="as asked") as raised:
        stub.ModelInfer(message("fails"), metadata=[*ASKED.items()])
    (text,) = trailers_of(raised.value)
    assert causes_of(text)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_trailing_metadata_of_a_stream(stub: service_pb2_grpc.GRPCInferenceServiceStub, count: int) -> None:
    call = stub.ModelStreamInfer(iter([message("same")] * count), metadata=[*ASKED.items()])
    assert [np.frombuffer(part.infer_response.raw_output_contents[0], np.float32)[0] for part in call] == [3] * count
    assert [bool(causes_of(text)) for text in trailers_of(call)] == [True] * min(count, 1)


def test_tritonclient_reads_explained_answers(server: ConchProcess) -> None:
    value = triton.InferInput("INPUT0", [1], "FP32")
    value.set_data_from_numpy(np.array([3], np.float32))
    answers: SimpleQueue[tuple[triton.InferResult, InferenceServerException | None]] = SimpleQueue()
    with triton.InferenceServerClient(server.grpc) as client:
        assert client.infer("same", [value], headers=ASKED).as_numpy("OUTPUT0").tolist() == [3]
        client.start_stream(lambda result, error: answers.put((result, error)), headers=ASKED)
        client.async_stream_infer("same", [value])
        result, error = answers.get(timeout=60)
        client.stop_stream()
    assert error is None
    assert result.as_numpy("OUTPUT0").tolist() == [3]
    assert answers.empty()


def comment_of(events: str) -> str:
    """The short form in the comment that ends a stream of events."""
    match = re.search(r"\n\n: X-Conch-Why: (.*)\n\n\Z", events)
    assert match is not None, events
    return match[1]


def test_a_comment_ends_a_stream_of_events(server: ConchProcess) -> None:
    document = {"text_input": "How is the weather?", "max_tokens": 20}
    header, events = post(server, "/v2/models/words/generate_stream", document, **ASKED)
    assert header is None
    assert causes_of(comment_of(events))
    assert "Why" not in post(server, "/v2/models/words/generate_stream", document)[1]
    assert "Why" not in post(server, "/v2/models/words/generate_stream", document, **ASKED, **ELSEWHERE)[1]


def test_a_comment_ends_a_stream_of_the_openai_api(server: ConchProcess) -> None:
    document = {"model": "words", "prompt": "How is the weather?", "max_tokens": 20, "stream": True}
    assert causes_of(comment_of(post(server, "/v1/completions", document, **ASKED)[1]))
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(
            model="words", prompt="How is the weather?", max_tokens=20, stream=True, extra_headers=ASKED
        )
        assert "".join(chunk.choices[0].text for chunk in stream) == "It rains all day."
        raw = client.completions.with_raw_response.create(
            model="words", prompt="How is the weather?", max_tokens=20, extra_headers=ASKED
        )
        assert causes_of(raw.headers["x-conch-why"])
