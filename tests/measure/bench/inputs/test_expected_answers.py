"""Comparison of answers: exact, within a tolerance, and what an error says."""

import json

import numpy as np
import pytest

from conch.domain.request import InferResponse
from conch.domain.tensor import Tensor
from conch.domain.triton_messages import service_pb2
from conch.measure.bench.generator import Answer
from conch.measure.bench.inputs.expected_answers import (
    ExpectedEmbedding,
    ExpectedTensors,
    ExpectedText,
    read_grpc_outputs,
    read_http_outputs,
)
from conch.protocols.v2_json.inference import ALL_BINARY, OutputOptions, encode_response

FLOATS = Tensor.from_numpy("OUT", np.array([1.0, -2.0, np.nan], np.float32))
TEXTS = Tensor.from_numpy("TEXT", np.array([b"caf\xc3\xa9", b"b"], object))


def body(*outputs: Tensor, options: OutputOptions = ALL_BINARY, number: str = "1") -> bytes:
    header, parts = encode_response(InferResponse("m", 1, list(outputs), id=number), options, lambda tensor, _: tensor)
    return header + b"".join(bytes(part) for part in parts)


@pytest.mark.parametrize("options", [ALL_BINARY, OutputOptions()])
def test_answers_are_read_as_the_server_writes_them(options: OutputOptions) -> None:
    outputs = read_http_outputs(body(FLOATS, TEXTS, options=options))
    assert bytes(outputs["TEXT"].data) == bytes(TEXTS.data)
    assert bytes(outputs["OUT"].data) == bytes(FLOATS.data)


def test_ids_and_other_outputs_are_not_compared() -> None:
    expected = ExpectedTensors({"OUT": FLOATS}, 1e-3, read_http_outputs)
    assert expected.difference(Answer(200, body(FLOATS, number="a"))) == ""
    assert expected.difference(Answer(200, body(TEXTS, FLOATS, number="b"))) == ""


def test_floats_may_differ_by_the_tolerance() -> None:
    expected = ExpectedTensors({"OUT": FLOATS}, 1e-3, read_http_outputs)
    near = Tensor.from_numpy("OUT", np.array([1.0005, -2.0, np.nan], np.float32))
    far = Tensor.from_numpy("OUT", np.array([1.5, -2.5, np.nan], np.float32))
    assert expected.difference(Answer(200, body(near))) == ""
    assert (
        expected.difference(Answer(200, body(far))) == "output 'OUT' element 0 is 1.5, expected 1 (2 elements differ)"
    )


def test_integers_and_texts_are_exact() -> None:
    numbers = Tensor.from_numpy("OUT", np.array([1000, 2000]))
    other = Tensor.from_numpy("OUT", np.array([1000, 2001]))
    said = ExpectedTensors({"OUT": numbers}, 0.5, read_http_outputs).difference(Answer(200, body(other)))
    assert said == "output 'OUT' element 1 is 2001, expected 2000"
    changed = Tensor.from_numpy("TEXT", np.array([b"cafe", b"b"], object))
    said = ExpectedTensors({"TEXT": TEXTS}, 0, read_http_outputs).difference(Answer(200, body(changed)))
    assert said == r"output 'TEXT' element 0 is b'cafe', expected b'caf\xc3\xa9'"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "not well-formed"),
        (b"{}", "not well-formed: 'outputs'"),
        (body(FLOATS)[:-1], "not well-formed: output 'OUT' is cut off"),
        (body(TEXTS), "output 'OUT' is missing"),
        (body(Tensor.from_numpy("OUT", np.ones((3, 1), np.float32))), "output 'OUT' has shape [3, 1], expected [3]"),
    ],
)
def test_other_answers_are_described(answer: bytes, said: str) -> None:
    assert ExpectedTensors({"OUT": FLOATS}, 1e-3, read_http_outputs).difference(Answer(200, answer)).startswith(said)


def test_grpc_answers() -> None:
    message = service_pb2.ModelInferResponse(model_name="m", id="7")
    message.outputs.add(name="OUT", datatype="FP32", shape=[3])
    message.raw_output_contents.append(bytes(FLOATS.data))
    expected = ExpectedTensors({"OUT": FLOATS}, 0, read_grpc_outputs)
    assert expected.difference(Answer(0, message.SerializeToString())) == ""
    assert expected.difference(Answer(0, b"\xff\xff")).startswith("not well-formed")


def response(value: float) -> bytes:
    message = service_pb2.ModelInferResponse(model_name="m")
    message.outputs.add(name="OUT", datatype="FP32", shape=[1])
    message.raw_output_contents.append(np.float32(value).tobytes())
    return message.SerializeToString()


def test_all_responses_of_a_stream_are_compared() -> None:
    expected = ExpectedTensors(read_grpc_outputs(response(1) + response(2)), 0, read_grpc_outputs, complete=True)
    assert expected.difference(Answer(0, response(1) + response(2))) == ""
    for answer, said in [
        (response(1) + response(3), "output 'OUT, response 2' element 0 is 3, expected 2"),
        (response(1), "output 'OUT, response 2' is missing"),
        (response(1) + response(2) + response(3), "output 'OUT, response 3' is not expected"),
    ]:
        assert expected.difference(Answer(0, answer)) == said


def test_texts_of_streams_and_whole_answers() -> None:
    expected = ExpectedText("It rains.")
    whole = json.dumps({"choices": [{"message": {"role": "assistant", "content": "It rains."}}]}).encode()
    assert expected.difference(Answer(200, b"", "It rains.")) == ""
    assert expected.difference(Answer(200, whole)) == ""
    assert expected.difference(Answer(200, b'{"text_output":"It rains."}')) == ""
    assert expected.difference(Answer(200, b"", "It snows.")) == (
        "the text differs at character 3: 'snows.', expected 'rains.'"
    )


def test_embeddings_may_differ_by_the_tolerance() -> None:
    def answer(*numbers: float) -> bytes:
        return json.dumps({"data": [{"embedding": numbers}]}).encode()

    expected = ExpectedEmbedding(answer(0.5, 1.0), 1e-3)
    assert expected.difference(Answer(200, answer(0.5001, 1.0))) == ""
    assert "differs by up to 0.1" in expected.difference(Answer(200, answer(0.6, 1.0)))
    assert "shape [1, 1], expected [1, 2]" in expected.difference(Answer(200, answer(0.6)))
