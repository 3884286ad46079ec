"""Workers decode and encode as the event loop does."""

import gzip

import numpy as np
import orjson
import pytest

from conch.base.errors import InvalidRequest
from conch.domain.request import InferRequest, InferResponse, Timeline
from conch.domain.tensor import Tensor
from conch.domain.triton_messages import service_pb2
from conch.protocols.classification import classify
from conch.protocols.openai import large as large_openai
from conch.protocols.openai.fields import InvalidField
from conch.protocols.openai.requests import read_chat, read_completion
from conch.protocols.regions import NO_REGIONS
from conch.protocols.v2_json import large as large_json
from conch.protocols.v2_json.inference import OutputOptions, decode_parts, decode_request, encode_response
from conch.protocols.v2_json.large import MAX_PARAMETERS, MAX_TENSORS
from conch.protocols.v2_proto.inference import InferMessage, read_infer_request
from conch.protocols.v2_proto.large import is_large, pack_message

INPUTS = {
    "numbers": b'{"name":"A","datatype":"FP32","shape":[2,2],"data":[[1,2],[3,NaN]]}',
    "texts": b'{"name":"B","datatype":"BYTES","shape":[2],"data":["a","\xff\xc3\xa9"]}',
    "binary": b'{"name":"C","datatype":"INT8","shape":[3],"parameters":{"binary_data_size":3}}',
}


def seen(request: InferRequest) -> object:
    tensors = [(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in request.inputs]
    return (
        tensors,
        request.id,
        repr(request.parameters),
        request.priority,
        request.timeout_us,
        request.correlation_id,
        request.flags,
        request.outputs,
    )


def decoded_apart(head: bytes, tail: bytes) -> tuple[InferRequest, OutputOptions]:
    rest, packed = large_json.pack_inputs(head)
    return decode_parts("m", 1, rest, memoryview(tail), Timeline(), NO_REGIONS, [*packed])


@pytest.mark.parametrize(
    "head",
    [
        b'{"inputs":[%s]}' % b",".join(INPUTS.values()),
        b'{"id":"7","inputs":[%s],"outputs":[{"name":"O","parameters":{"classification":2,"x":1}}]}' % INPUTS["binary"],
        b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1],"data":[1],"parameters":null},%s],'
        b'"outputs":[{"name":"O","parameters":null}]}' % INPUTS["binary"],
        b'{"parameters":{"sequence_id":"a","sequence_start":true,"priority":3,"a":NaN,"b":18446744073709551615,'
        b'"binary_data_output":true},"inputs":[%s],"other":[1,2]}' % INPUTS["binary"],
    ],
)
def test_a_request_is_read_alike(head: bytes) -> None:
    body = head + b"\x01\x02\x03"
    expected, expected_options = decode_request("m", 1, body, len(head), Timeline())
    request, options = decoded_apart(head, body[len(head) :])
    assert seen(request) == seen(expected)
    assert (options.binary, options.binary_default, options.classes) == (
        expected_options.binary,
        expected_options.binary_default,
        expected_options.classes,
    )


@pytest.mark.parametrize(
    "head",
    [
        b"{}",
        b'{"inputs":3}',
        b'{"inputs":[3]}',
        b'{"inputs":[{"name":"A"}]}',
        b'{"inputs":[{"name":"A","datatype":"FP32","shape":[2],"data":[1]}]}',
        b'{"inputs":[{"name":"A","datatype":"FP16","shape":[1],"data":[1]}]}',
        b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1],"data":[1],"parameters":{"binary_data_size":4}}]}',
        b'{"inputs":[{"name":"A","datatype":"FP32","shape":[1]}]}',
        b'{"inputs":[],"parameters":{"triton_x":1}}',
        b'{"inputs":[],"id":1}',
        b'{"inputs":[],"outputs":[{}]}',
        b'{"inputs":[],"outputs":[{"name":"O","parameters":{"classification":-1}}]}',
        b'{"inputs":[],"parameters":{"a":[]}}',
        b'{"inputs":',
    ],
)
def test_a_request_is_refused_alike(head: bytes) -> None:
    with pytest.raises(InvalidRequest) as expected:
        decode_request("m", 1, head, None)
    with pytest.raises(InvalidRequest) as error:
        decoded_apart(head, b"")
    assert error.value.message == expected.value.message


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b'{"inputs":[%s]}' % b",".join([INPUTS["numbers"]] * (MAX_TENSORS + 1)), f"{MAX_TENSORS} inputs"),
        (b'{"inputs":[],"outputs":[%s]}' % b",".join([b'{"name":"a"}'] * (MAX_TENSORS + 1)), f"{MAX_TENSORS} outputs"),
        (
            orjson.dumps({"inputs": [], "parameters": {str(i): i for i in range(MAX_PARAMETERS + 1)}}),
            f"{MAX_PARAMETERS} parameters",
        ),
        (
            orjson.dumps(
                {
                    "inputs": [
                        {"name": "A", "datatype": "FP32", "shape": [1] * 5000, "parameters": {"binary_data_size": 4}}
                    ]
                }
            ),
            "'shape' of an input",
        ),
    ],
)
def test_tensors_and_parameters_are_bounded(head: bytes, what: str) -> None:
    with pytest.raises(InvalidRequest, match=what):
        large_json.pack_inputs(head)


@pytest.mark.parametrize("coding", ["", "gzip"])
def test_a_response_is_written_alike(coding: str) -> None:
    floats = Tensor.from_numpy("F", np.array([1.5, np.inf, 3.0], np.float32))
    texts = Tensor("T", "BYTES", (1,), b"\x02\0\0\0\xffa")
    raw = Tensor("R", "UINT8", (4,), b"abcd")
    classed = Tensor.from_numpy("C", np.array([3, 9, 4], np.int8))
    response = InferResponse("m", 2, [floats, texts, raw, classed], id="x", parameters={"p": 1})
    options = OutputOptions(binary={"R": True, "C": True}, classes={"C": 2})
    labels = {"C": ["zero", "one"]}
    document, binary = encode_response(
        response, options, lambda tensor, count: classify(tensor, count, labels["C"], False)
    )
    described, sent = large_json.describe_response(response, options, labels, batched=False, coding=coding)
    length, *parts = large_json.write_response(orjson.loads(orjson.dumps(described)), sent)
    assert int(bytes(length)) == len(document)
    if coding:
        assert gzip.decompress(b"".join(parts)) == document + b"".join(map(bytes, binary))
    else:
        assert bytes(parts[0]) == document
        assert [bytes(part) for part in parts[1:]] == [bytes(binary[1])]  # the server has the other


def test_whether_a_response_is_large_depends_on_its_form() -> None:
    response = InferResponse("m", 1, [Tensor("A", "UINT8", (200_000,), bytes(200_000))])
    small = InferResponse("m", 1, [Tensor("A", "UINT8", (20_000,), bytes(20_000))])
    binary, classes = OutputOptions(binary_default=True), OutputOptions(classes={"A": 1})
    assert large_json.is_large(response, OutputOptions(), compressed=False)
    assert not large_json.is_large(response, binary, compressed=False)
    assert large_json.is_large(response, binary, compressed=True)
    assert large_json.is_large(small, classes, compressed=False)
    assert not large_json.is_large(small, OutputOptions(), compressed=True)


def test_contents_of_a_message_are_read_alike() -> None:
    message = service_pb2.ModelInferRequest(model_name="m", id="1")
    first = message.inputs.add(name="A", datatype="INT16", shape=[3])
    first.contents.int_contents.extend([1, -2, 3])
    message.inputs.add(name="B", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"abc")
    data = message.SerializeToString()
    head, packed, raw = pack_message(data)
    assert raw is None
    small = service_pb2.ModelInferRequest.FromString(head)
    request, _ = InferMessage(small, [], packed).decode(Timeline())
    assert seen(request) == seen(read_infer_request(data).decode(Timeline())[0])


def test_raw_contents_make_no_message_large() -> None:
    message = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[bytes(10**6)])
    assert not is_large(message.SerializeToString())
    message.inputs.add(name="a" * 200_000)
    assert is_large(message.SerializeToString())


def test_fields_of_a_message_are_counted() -> None:
    message = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[b""] * 100_000)
    with pytest.raises(InvalidRequest, match="at most 8192"):
        is_large(message.SerializeToString())


def test_a_chat_is_read_alike() -> None:
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    body = orjson.dumps(
        {
            "model": "m",
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "é", "colour": {}}],
                },
                {"role": "assistant", "tool_calls": [call]},
            ],
            "temperature": 0.5,
        }
    )
    expected = read_chat(body)
    meta, (rest, messages) = large_openai.split_chat(body)
    chat = read_chat(rest, messages, meta["ignored"])
    assert chat.ignored == expected.ignored
    assert [field.name for field in chat.ignored] == ["messages[].content[].colour"]
    assert orjson.loads(bytes(chat.messages)) == expected.messages
    assert (chat.model, chat.params) == (expected.model, expected.params)


@pytest.mark.parametrize("prompt", ["é", ["a", "b"], [1, 2], [[1, 2], [3]]])
def test_prompts_are_read_alike(prompt: object) -> None:
    body = orjson.dumps({"model": "m", "prompt": prompt, "max_tokens": 3})
    meta, (rest, *parts) = large_openai.split_prompts(body, "prompt")
    call = read_completion(rest, large_openai.join_prompts(meta, parts))
    assert call == read_completion(body)


def test_prompts_are_bounded() -> None:
    for prompt, what in (([0] * (2**20 + 1), "1048576 token ids"), ("a" * (2**24 + 1), "16777216 bytes of text")):
        with pytest.raises(InvalidField, match=what):
            large_openai.split_prompts(orjson.dumps({"model": "m", "prompt": prompt}), "prompt")
    with pytest.raises(InvalidField, match="524288 bytes at most"):
        large_openai.split_prompts(orjson.dumps({"model": "m", "prompt": "a", "stop": ["a"] * 200_000}), "prompt")
