"""ModelInferRequest to InferRequest and InferResponse to ModelInferResponse, as bytes and values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from conch.base.errors import ConchError, InvalidRequest, Unsupported
from conch.domain.request import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse, Timeline
from conch.domain.tensor import Tensor
from conch.protocols.v2_proto.inference import (
    ResponseOptions,
    encode_infer_response,
    encode_stream_error,
    parse_version,
    read_infer_request,
    streamed,
)


def message(*inputs: tuple[str, str, list[int]], **fields) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(**{"model_name": "m", **fields})
    for name, datatype, shape in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
    return request


def decode(request: service_pb2.ModelInferRequest) -> tuple[InferRequest, ResponseOptions]:
    return read_infer_request(request.SerializeToString()).decode(Timeline())


def refusal(request: service_pb2.ModelInferRequest) -> str:
    with pytest.raises(InvalidRequest) as caught:
        decode(request)
    return caught.value.message


# ---- raw contents


def test_raw_contents_go_to_the_inputs_in_order():
    request, options = decode(
        message(("A", "INT8", [1, 2]), ("B", "BYTES", [1]), raw_input_contents=[b"ab", b"\1\0\0\0x"], id="7")
    )
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs] == [
        ("A", "INT8", (1, 2), b"ab"),
        ("B", "BYTES", (1,), b"\1\0\0\0x"),
    ]
    assert (request.model_name, request.id, request.version, request.outputs) == ("m", "7", None, ())
    assert options == ResponseOptions()


def test_too_few_raw_contents_are_refused():
    text = refusal(message(("A", "INT8", [1]), ("B", "INT8", [1]), raw_input_contents=[b"a"]))
    assert text == "unable to find data for input tensor 'B' for model 'm' in request."


def test_too_many_raw_contents_are_ignored():
    request, _ = decode(message(("A", "INT8", [1]), raw_input_contents=[b"a", b"b", b"c"]))
    assert [bytes(tensor.data) for tensor in request.inputs] == [b"a"]


def test_raw_and_typed_contents_do_not_mix():
    request = message(("A", "INT8", [1]), ("B", "INT8", [1]), raw_input_contents=[b"a"])
    request.inputs[1].contents.int_contents.append(1)
    assert refusal(request) == (
        "contents field must not be specified when using raw_input_contents for 'B' for model 'm'"
    )


@pytest.mark.parametrize("size", [0, 1, 100, 16 * 1024, 300_000])
@pytest.mark.parametrize("count", [1, 3])
def test_messages_of_any_size_decode_alike(size, count):
    contents = [bytes([index]) * size for index in range(count)]
    entries = [(f"I{index}", "UINT8", [size]) for index in range(count)]
    request, _ = decode(message(*entries, raw_input_contents=contents, id="x", model_version="3"))
    assert [bytes(tensor.data) for tensor in request.inputs] == contents
    assert (request.id, request.version) == ("x", 3)


def test_tensors_of_large_messages_are_views_on_what_was_received():
    data = message(("A", "UINT8", [100_000]), raw_input_contents=[bytes(100_000)]).SerializeToString()
    request, _ = read_infer_request(data).decode(Timeline())
    assert isinstance(request.inputs[0].data, memoryview)
    assert request.inputs[0].data.obj is data


def test_raw_contents_may_stand_anywhere_in_a_large_message():
    """As in a message that was merged from two: the order of fields is free."""
    first = message(("A", "UINT8", [20_000]), raw_input_contents=[b"a" * 20_000]).SerializeToString()
    second = service_pb2.ModelInferRequest(id="late", raw_input_contents=[b"b" * 20_000])
    second.inputs.add(name="B", datatype="UINT8", shape=[20_000])
    request, _ = read_infer_request(first + second.SerializeToString()).decode(Timeline())
    assert [bytes(tensor.data) for tensor in request.inputs] == [b"a" * 20_000, b"b" * 20_000]
    assert request.id == "late"


def test_unknown_fields_do_not_matter():
    data = message(("A", "UINT8", [20_000]), raw_input_contents=[bytes(20_000)]).SerializeToString()
    for unknown in (b"\x60\x05", b"\xa2\x06\x01x", b"\x6d\0\0\0\0"):  # numbers 12, 100 and 13
        request, _ = read_infer_request(unknown + data + unknown).decode(Timeline())
        assert request.inputs[0].nbytes == 20_000


@pytest.mark.parametrize("cut", [1, 5, 19_000, 20_010])
def test_a_truncated_large_message_is_refused(cut):
    data = message(("A", "UINT8", [20_000]), raw_input_contents=[bytes(20_000)]).SerializeToString()
    with pytest.raises(InvalidRequest, match="failed to parse the request"):
        read_infer_request(data[:-cut])


def test_a_length_that_never_ends_is_refused():
    with pytest.raises(InvalidRequest, match="failed to parse the request"):
        read_infer_request(b"\x3a" + b"\xff" * 20_000)


# ---- typed contents

TYPED = [
    ("BOOL", "bool_contents", [True, False], np.bool_),
    ("INT8", "int_contents", [-128, 127], np.int8),
    ("INT16", "int_contents", [-(2**15), 2**15 - 1], np.int16),
    ("INT32", "int_contents", [-(2**31), 2**31 - 1], np.int32),
    ("INT64", "int64_contents", [-(2**63), 2**63 - 1], np.int64),
    ("UINT8", "uint_contents", [0, 255], np.uint8),
    ("UINT16", "uint_contents", [0, 2**16 - 1], np.uint16),
    ("UINT32", "uint_contents", [0, 2**32 - 1], np.uint32),
    ("UINT64", "uint64_contents", [0, 2**64 - 1], np.uint64),
    ("FP32", "fp32_contents", [1.5, float("inf")], np.float32),
    ("FP64", "fp64_contents", [1e300, -0.0], np.float64),
]
DATATYPE_OF_FIELD = {"int_contents": "INT32", "uint_contents": "UINT32", "bytes_contents": "BYTES"} | {
    field: datatype for datatype, field, _, _ in TYPED if field not in ("int_contents", "uint_contents")
}


@pytest.mark.parametrize(("datatype", "field", "values", "dtype"), TYPED)
def test_typed_contents(datatype, field, values, dtype):
    request = message(("A", datatype, [2]))
    getattr(request.inputs[0].contents, field).extend(values)
    assert decode(request)[0].inputs[0].data == np.array(values, dtype).tobytes()


def test_typed_text():
    request = message(("A", "BYTES", [2]))
    request.inputs[0].contents.bytes_contents.extend([b"ab", b""])
    assert decode(request)[0].inputs[0].data == b"\2\0\0\0ab\0\0\0\0"


def test_typed_contents_without_a_value_are_an_empty_tensor():
    request = message(("A", "FP32", [0]))
    request.inputs[0].contents.SetInParent()
    assert decode(request)[0].inputs[0].data == b""


WRONG = [
    (field, datatype)
    for field, own in sorted(DATATYPE_OF_FIELD.items())
    for datatype in ("FP16", "BF16", "FP32", "INT32", "INT64", "BYTES")
    if datatype != own
]


@pytest.mark.parametrize(("field", "datatype"), WRONG)
def test_typed_contents_of_the_wrong_field(field, datatype):
    request = message(("X", datatype, [1]))
    getattr(request.inputs[0].contents, field).append(b"1" if field == "bytes_contents" else 1)
    assert refusal(request) == (
        f"unexpected explicit tensor data for input tensor 'X' for model 'm' of type '{DATATYPE_OF_FIELD[field]}', "
        f"expected datatype '{datatype}'"
    )


def test_typed_contents_in_two_fields():
    request = message(("X", "INT64", [1]))
    request.inputs[0].contents.int64_contents.append(1)
    request.inputs[0].contents.fp32_contents.append(1)
    assert "for input tensor 'X' for model 'm', binary data was already supplied." in refusal(request)


@pytest.mark.parametrize(
    ("datatype", "field", "value"),
    [("INT8", "int_contents", 128), ("INT16", "int_contents", -40_000), ("UINT8", "uint_contents", 256)],
)
def test_integers_that_do_not_fit_are_refused_not_wrapped(datatype, field, value):
    request = message(("X", datatype, [2]))
    getattr(request.inputs[0].contents, field).extend([1, value])
    assert refusal(request) == f"value {value} in the contents of input tensor 'X' does not fit {datatype}"


# ---- names, shapes, versions


@pytest.mark.parametrize("datatype", ["", "int32", "TYPE_INT32", "FP8"])
def test_unknown_datatypes(datatype):
    text = refusal(message(("X", datatype, [1]), raw_input_contents=[b""]))
    assert text.startswith(f"invalid datatype for input X: '{datatype}', expected one of BF16, BOOL, ")


def test_negative_dimensions():
    assert "input 'X' has a negative dimension: [1, -1]" in refusal(
        message(("X", "INT8", [1, -1]), raw_input_contents=[b""])
    )


def test_endless_shapes():
    assert refusal(message(("X", "INT8", [2**62] * 100_000), raw_input_contents=[b""])) == (
        "shape of input 'X' has 100000 dimensions, at most 64 are possible"
    )


def test_versions():
    assert [parse_version(text) for text in ("", "0", "3", str(2**63 - 1))] == [None, 0, 3, 2**63 - 1]
    for text in ("abc", "-1", "1.5", " 1", "٣", str(2**63), "9" * 5000):
        with pytest.raises(InvalidRequest, match="version should be an integral value > 0"):
            parse_version(text)


# ---- outputs


def test_requested_outputs_are_named_once():
    request = message()
    for name in ("B", "A", "B"):
        request.outputs.add(name=name)
    assert decode(request)[0].outputs == ("B", "A")


def test_classification():
    request = message()
    request.outputs.add(name="A").parameters["classification"].int64_param = 3
    request.outputs.add(name="B")
    assert decode(request)[1].classification == {"A": 3}


@pytest.mark.parametrize(("kind", "value"), [("int64_param", 0), ("int64_param", -1), ("string_param", "3")])
def test_invalid_classification_counts(kind, value):
    request = message()
    setattr(request.outputs.add(name="A").parameters["classification"], kind, value)
    text = refusal(request)
    assert "'classification' parameter, expected" in text
    assert "output 'A'" in text


def test_shared_memory_is_refused_where_there_is_none():
    as_input = message(("A", "INT8", [1]))
    as_output = message()
    for entry, region in ((as_input.inputs[0], "r1"), (as_output.outputs.add(name="B"), "r2")):
        entry.parameters["shared_memory_region"].string_param = region
        entry.parameters["shared_memory_byte_size"].int64_param = 1
    for request, region in ((as_input, "r1"), (as_output, "r2")):
        with pytest.raises(Unsupported, match=f"'shared_memory_region', here '{region}', .* --allow-client-shm=true"):
            decode(request)


# ---- parameters


def with_parameter(key: str, kind: str | None, value: object = None) -> service_pb2.ModelInferRequest:
    request = message()
    parameter = request.parameters[key]
    if kind:
        setattr(parameter, kind, value)
    return request


@pytest.mark.parametrize(
    ("key", "kind", "value", "attribute"),
    [
        ("sequence_id", "int64_param", 5, "correlation_id"),
        ("sequence_id", "uint64_param", 2**64 - 1, "correlation_id"),
        ("sequence_id", "string_param", "five", "correlation_id"),
        ("priority", "int64_param", 2, "priority"),
        ("priority", "uint64_param", 2**63, "priority"),
        ("timeout", "int64_param", 1000, "timeout_us"),
    ],
)
def test_parameters_with_a_meaning(key, kind, value, attribute):
    request, _ = decode(with_parameter(key, kind, value))
    assert getattr(request, attribute) == value
    assert request.parameters == {}


def test_sequence_flags():
    assert decode(with_parameter("sequence_start", "bool_param", True))[0].flags == SEQUENCE_START
    assert decode(with_parameter("sequence_end", "bool_param", True))[0].flags == SEQUENCE_END
    assert decode(with_parameter("sequence_end", "bool_param", False))[0].flags == 0


@pytest.mark.parametrize(
    ("key", "kind", "value", "expected"),
    [
        ("sequence_id", "bool_param", True, "int64_param or string_param. It is bool_param"),
        ("sequence_id", None, None, "int64_param or string_param. It is unset"),
        ("sequence_start", "int64_param", 1, "bool_param"),
        ("sequence_end", "string_param", "true", "bool_param"),
        ("priority", "string_param", "1", "int64_param or uint64_param"),
        ("timeout", "string_param", "1", "int64_param"),
        ("timeout", "double_param", 1.0, "int64_param"),
        ("triton_enable_empty_final_response", "string_param", "1", "bool_param"),
        ("own", None, None, "int64_param, bool_param, or string_param. It is unset"),
    ],
)
def test_parameters_of_the_wrong_type(key, kind, value, expected):
    text = refusal(with_parameter(key, kind, value))
    assert text.startswith(f"invalid value type for '{key}' parameter, expected {expected}")


@pytest.mark.parametrize("key", ["sequence_id", "priority", "timeout"])
def test_negative_numbers_are_refused_not_wrapped(key):
    assert f"invalid value for '{key}', expected value >= 0. It is -1" in refusal(
        with_parameter(key, "int64_param", -1)
    )


@pytest.mark.parametrize("key", ["triton_x", "triton_final_response", "headers", "binary_data_output"])
def test_reserved_keys(key):
    text = refusal(with_parameter(key, "bool_param", True))
    assert "are reserved for Triton usage. Only the following keys starting with 'triton_' are allowed: triton_" in text
    assert f"'{key}'" in text


def test_an_empty_final_response_can_be_requested():
    request, options = decode(with_parameter("triton_enable_empty_final_response", "bool_param", True))
    assert options.empty_final_response
    assert request.parameters == {}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int64_param", -5),
        ("uint64_param", 2**64 - 1),
        ("double_param", 0.5),
        ("bool_param", False),
        ("string_param", ""),
    ],
)
def test_other_parameters_are_passed_on(kind, value):
    request, _ = decode(with_parameter("own", kind, value))
    assert request.parameters == {"own": value}
    assert type(request.parameters["own"]) is type(value)


# ---- responses


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_152])
def test_a_response_is_a_message_that_protobuf_reads(size):
    text = Tensor("TEXT", "BYTES", (1,), b"\1\0\0\0x")
    raw = Tensor("RAW", "UINT8", (size,), memoryview(bytes(size)))
    response = InferResponse("m", 2, [text, raw], id="7", parameters={"p": 1.5})
    answer = service_pb2.ModelInferResponse.FromString(b"".join(encode_infer_response(response)))
    assert (answer.model_name, answer.model_version, answer.id) == ("m", "2", "7")
    assert [(o.name, o.datatype, list(o.shape)) for o in answer.outputs] == [
        ("TEXT", "BYTES", [1]),
        ("RAW", "UINT8", [size]),
    ]
    assert list(answer.raw_output_contents) == [b"\1\0\0\0x", bytes(size)]
    assert answer.parameters["p"].double_param == 1.5
    for final in (False, True):
        parts = streamed(encode_infer_response(response, {"triton_final_response": final}))
        message = service_pb2.ModelStreamInferResponse.FromString(b"".join(parts))
        assert message.infer_response.parameters.pop("triton_final_response").bool_param is final
        assert message.infer_response == answer


def test_tensors_over_any_buffer():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    for data in (array.tobytes(), bytearray(array.tobytes()), memoryview(array.tobytes()), array.data):
        encoded = b"".join(encode_infer_response(InferResponse("m", 1, [Tensor("A", "INT32", (2, 3), data)])))
        assert service_pb2.ModelInferResponse.FromString(encoded).raw_output_contents[0] == array.tobytes()


def test_a_response_parameter_beyond_64_bits():
    with pytest.raises(ConchError, match="'n' is 18446744073709551616, which does not fit"):
        encode_infer_response(InferResponse("m", 1, [], parameters={"n": 2**64}))


def test_stream_errors():
    refused = service_pb2.ModelStreamInferResponse.FromString(b"".join(encode_stream_error("no", "7", None)))
    assert (refused.error_message, refused.infer_response.id) == ("no", "7")
    assert not refused.infer_response.parameters
    failed = service_pb2.ModelStreamInferResponse.FromString(b"".join(encode_stream_error("no", "7", False)))
    assert failed.infer_response.parameters["triton_final_response"].WhichOneof("parameter_choice") == "bool_param"


# ---- anything


names = st.one_of(st.text(max_size=5), st.sampled_from(["INPUT0", "FP32", "INT8", "BYTES", "1", "-1"]))
parameters = st.builds(
    lambda choice: service_pb2.InferParameter(**choice),
    st.one_of(
        st.just({}),
        st.fixed_dictionaries({"bool_param": st.booleans()}),
        st.fixed_dictionaries({"int64_param": st.integers(-(2**63), 2**63 - 1)}),
        st.fixed_dictionaries({"uint64_param": st.integers(0, 2**64 - 1)}),
        st.fixed_dictionaries({"double_param": st.floats()}),
        st.fixed_dictionaries({"string_param": names}),
    ),
)
MEANT = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "classification")
RESERVED = ("headers", "triton_x", "triton_enable_empty_final_response", "shared_memory_region")
keys = st.one_of(names, st.sampled_from(MEANT + RESERVED))
maps = st.dictionaries(keys, parameters, max_size=3)
contents = st.builds(
    service_pb2.InferTensorContents,
    bool_contents=st.lists(st.booleans(), max_size=2),
    int_contents=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=2),
    int64_contents=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2),
    uint_contents=st.lists(st.integers(0, 2**32 - 1), max_size=2),
    uint64_contents=st.lists(st.integers(0, 2**64 - 1), max_size=2),
    fp32_contents=st.lists(st.floats(width=32), max_size=2),
    fp64_contents=st.lists(st.floats(), max_size=2),
    bytes_contents=st.lists(st.binary(max_size=3), max_size=2),
)
inputs = st.builds(
    service_pb2.ModelInferRequest.InferInputTensor,
    name=names,
    datatype=st.one_of(names, st.sampled_from(["FP32", "INT8", "UINT16", "BYTES", "FP16", "BOOL"])),
    shape=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    parameters=maps,
    contents=st.none() | contents,
)
outputs = st.builds(service_pb2.ModelInferRequest.InferRequestedOutputTensor, name=names, parameters=maps)
requests = st.builds(
    service_pb2.ModelInferRequest,
    model_name=names,
    model_version=st.one_of(st.just(""), names),
    id=names,
    parameters=maps,
    inputs=st.lists(inputs, max_size=3),
    outputs=st.lists(outputs, max_size=2),
    raw_input_contents=st.lists(st.binary(max_size=10) | st.builds(bytes, st.just(20_000)), max_size=3),
)


@pytest.mark.slow
@settings(max_examples=400)
@given(requests)
def test_any_message_is_a_request_or_a_conch_error(request):
    try:
        decoded, _ = decode(request)
    except ConchError:
        return
    assert decoded.model_name == request.model_name
    assert [tensor.name for tensor in decoded.inputs] == [entry.name for entry in request.inputs]


@pytest.mark.slow
@settings(max_examples=300)
@given(requests, st.data())
def test_any_bytes_are_a_request_or_a_conch_error(request, data):
    """Messages with a few bytes changed, cut or doubled, small and large ones."""
    octets = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(octets)))
        octets[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        read_infer_request(bytes(octets)).decode(Timeline())
    except ConchError:
        return


@settings(max_examples=200)
@given(requests)
def test_splitting_a_message_changes_nothing(request):
    """A message decodes alike whether its raw contents are parted from it, as large ones' are, or parsed with it."""
    large = service_pb2.ModelInferRequest()
    large.CopyFrom(request)
    large.raw_input_contents.append(bytes(20_000))
    split = read_infer_request(large.SerializeToString())
    assert [bytes(raw) for raw in split.raw_contents] == list(large.raw_input_contents)
    # As bytes: NaN is not equal to itself.
    large.ClearField("raw_input_contents")
    assert split.message.SerializeToString(deterministic=True) == large.SerializeToString(deterministic=True)
