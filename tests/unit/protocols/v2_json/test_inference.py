import json
import struct

import pytest

from conch.base.errors import BackendError, InvalidRequest, Unsupported
from conch.domain.model_config import ModelConfig, TensorSpec
from conch.domain.request import SEQUENCE_END, SEQUENCE_START, InferResponse
from conch.domain.tensor import Tensor, pack_bytes
from conch.protocols.v2_json.inference import (
    OutputOptions,
    decode_raw_request,
    decode_request,
    encode_response,
    read_header_length,
)


def decode(document, tail: bytes | None = None):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    if tail is None:
        return decode_request("m", None, body, None)
    return decode_request("m", None, body + tail, len(body))


def with_input(**fields):
    entry = {"name": "INPUT0", "datatype": "INT32", "shape": [2], "data": [1, 2]} | fields
    return {"inputs": [{key: value for key, value in entry.items() if value is not ...}]}


def data_of(datatype: str, shape: list[int], data) -> bytes:
    request, _ = decode(with_input(datatype=datatype, shape=shape, data=data))
    return bytes(request.inputs[0].data)


def encode(*outputs: Tensor, options: OutputOptions | None = None, **fields) -> tuple[bytes, list[bytes]]:
    header, binary = encode_response(
        InferResponse("m", 3, list(outputs), **fields), options or OutputOptions(), lambda tensor, count: tensor
    )
    return header, [bytes(part) for part in binary]


# Requests.


def test_a_request_with_everything():
    request, options = decode(
        {
            "id": "seven",
            "parameters": {
                "sequence_id": 2**63,
                "sequence_start": True,
                "sequence_end": True,
                "priority": 2,
                "timeout": 1000,
                "text": "ä",
                "int": -5,
                "flag": False,
                "double": 0.5,
            },
            "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [[1, 2.5]]}],
            "outputs": [
                {"name": "A"},
                {"name": "B", "parameters": {"binary_data": True}},
                {"name": "C", "parameters": {"classification": 3}},
                {"name": "A", "parameters": {}},
            ],
        }
    )
    assert (request.model_name, request.version, request.id) == ("m", None, "seven")
    assert (request.correlation_id, request.flags) == (2**63, SEQUENCE_START | SEQUENCE_END)
    assert (request.priority, request.timeout_us) == (2, 1000)
    assert request.parameters == {"text": "ä", "int": -5, "flag": False, "double": 0.5}
    assert request.outputs == ("A", "B", "C")
    assert options.binary == {"A": False, "B": True, "C": False}
    assert options.classes == {"C": 3}
    (tensor,) = request.inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("INPUT0", "FP32", (1, 2))
    assert bytes(tensor.data) == struct.pack("<2f", 1, 2.5)


def test_a_sequence_may_have_a_name():
    request, _ = decode(with_input() | {"parameters": {"sequence_id": "mine", "sequence_start": False}})
    assert (request.correlation_id, request.flags) == ("mine", 0)


def test_binary_inputs_are_views_of_the_body_in_order():
    entries = [
        {"name": "A", "datatype": "FP16", "shape": [2], "parameters": {"binary_data_size": 4}},
        {"name": "B", "datatype": "INT8", "shape": [1], "data": [5]},
        {"name": "C", "datatype": "BF16", "shape": [1], "parameters": {"binary_data_size": 2}},
        {"name": "D", "datatype": "FP32", "shape": [0], "parameters": {"binary_data_size": 0}},
    ]
    request, _ = decode({"inputs": entries}, b"aaaacc")
    assert [bytes(tensor.data) for tensor in request.inputs] == [b"aaaa", b"\x05", b"cc", b""]
    assert isinstance(request.inputs[0].data, memoryview)


def test_binary_is_the_default_for_outputs_that_are_not_listed():
    _, options = decode(with_input() | {"parameters": {"binary_data_output": True}})
    assert (options.binary_default, options.binary) == (True, {})
    _, options = decode(with_input() | {"parameters": {"binary_data_output": True}, "outputs": [{"name": "A"}]})
    assert options.binary == {"A": False}
    _, options = decode(with_input() | {"outputs": []})
    assert (options.binary_default, options.binary) == (False, {})


@pytest.mark.parametrize(
    ("datatype", "code", "data"),
    [
        ("BOOL", "?", [True, False]),
        ("INT8", "b", [-128, 127]),
        ("INT16", "h", [-(2**15), 2**15 - 1]),
        ("INT32", "i", [-(2**31), 2**31 - 1]),
        ("INT64", "q", [-(2**63), 2**63 - 1]),
        ("UINT8", "B", [0, 255]),
        ("UINT16", "H", [0, 2**16 - 1]),
        ("UINT32", "I", [0, 2**32 - 1]),
        ("UINT64", "Q", [0, 2**64 - 1]),
        ("FP32", "f", [1, -0.5]),
        ("FP64", "d", [1, 1e-300]),
    ],
)
def test_every_datatype_that_json_carries(datatype, code, data):
    assert data_of(datatype, [2], data) == struct.pack(f"<2{code}", *data)


def test_strings_are_bytes():
    assert data_of("BYTES", [3], ["ä", "", "b\0"]) == pack_bytes(["ä".encode(), b"", b"b\0"])


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]], [[[1], [2]], [[3], [4]]], [1, [2, [3]], 4]])
def test_nesting_is_ignored(data):
    assert data_of("INT32", [2, 2], data) == struct.pack("<4i", 1, 2, 3, 4)


def test_numbers_beyond_fp32_become_infinity():
    assert data_of("FP32", [3], [1e39, -(10**100), 1]) == struct.pack("<3f", float("inf"), float("-inf"), 1)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_literals_that_json_does_not_have(literal):
    body = json.dumps(with_input(datatype="FP32", shape=[1], data=[0])).replace("[0]", f"[{literal}]")
    request, _ = decode(body.encode())
    assert str(struct.unpack("<f", request.inputs[0].data)[0]) == literal.lower().replace("infinity", "inf")


def test_a_byte_order_mark():
    assert decode(b"\xef\xbb\xbf" + json.dumps(with_input()).encode())[0].inputs[0].name == "INPUT0"


def test_strings_of_bytes_that_are_not_utf8():
    body = b'{"inputs":[{"name":"T","datatype":"BYTES","shape":[1],"data":["a\xff\xc3\xa4"]}]}'
    assert bytes(decode(body)[0].inputs[0].data) == pack_bytes([b"a\xff\xc3\xa4"])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(b'{"inputs": [}', "failed to parse the request JSON buffer: ", id="1 malformed"),
        pytest.param(b'{"inputs": [NaN}', "failed to parse the request JSON buffer: ", id="1 malformed, lenient"),
        pytest.param(b"[" * 5000, "failed to parse the request JSON buffer: ", id="1 deep"),
        pytest.param(b'["NaN"' + b"[" * 100_000, "failed to parse the request JSON buffer: ", id="1 deep, lenient"),
        pytest.param(b'{"NaN": 1e999}', "number too big to be stored in a double", id="1 huge number"),
        pytest.param(b'{"NaN": ' + b"9" * 5000 + b"}", "number too big to be stored in a double", id="1 many digits"),
        pytest.param([], "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'", id="3 []"),
        pytest.param(
            None, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'", id="3 null"
        ),
        pytest.param({}, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'", id="3 {}"),
        pytest.param({"inputs": {}}, "Unable to parse 'inputs': attempt to access JSON non-array as array", id="4"),
        pytest.param({"inputs": [1]}, "But no field is set; each of 'inputs' is an object, not 1", id="4 no object"),
        pytest.param(with_input(datatype="FLOAT"), "invalid datatype for input INPUT0", id="10"),
        pytest.param(with_input(datatype="int32"), "invalid datatype for input INPUT0", id="10 lower case"),
        *(
            pytest.param(
                with_input(**{key: ...}),
                f"Unable to parse '{key}': attempt to access non-existing object member '{key}'",
                id=f"11 {key}",
            )
            for key in ("name", "datatype", "shape")
        ),
        pytest.param(
            with_input(data=...),
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            "'shared_memory_region' in 'parameters'. But no field is set",
            id="12",
        ),
        pytest.param(
            with_input(parameters={"binary_data_size": 8}), "But set 'data' 'binary_data_size'", id="13 data and binary"
        ),
        pytest.param(
            with_input(parameters={"shared_memory_region": "r"}), "But set 'data' 'shared_memory_region'", id="13 shm"
        ),
        *(
            pytest.param(
                with_input(shape=[dim]),
                "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
                id=f"18 {dim!r}",
            )
            for dim in (-1, 1.5, "1", None, True, [2], 2**63)
        ),
        pytest.param(
            with_input(shape=2), "Unable to parse 'shape': attempt to access JSON non-array as array", id="18"
        ),
        pytest.param(with_input(shape=[1] * 65), "shape of input 'INPUT0' has 65 dimensions", id="18 rank"),
        pytest.param(with_input(data=[1]), "Shape does not match true shape of 'data' field", id="19 few"),
        pytest.param(with_input(data=[1, 2, 3]), "Shape does not match true shape of 'data' field", id="19 many"),
        pytest.param(
            with_input(shape=[2**62, 2**62]), "Shape does not match true shape of 'data' field", id="19 huge shape"
        ),
        *(
            pytest.param(
                with_input(data=[1, value]),
                "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer; "
                "element 1 of input 'INPUT0' (INT32) is ",
                id=f"20 {value!r}",
            )
            for value in ("x", 1.5, 1.0, None, True, {})
        ),
        pytest.param(
            with_input(datatype="UINT8", data=[1, "x"]),
            "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer",
            id="20 unsigned",
        ),
        pytest.param(
            with_input(datatype="UINT8", data=[1, -1]),
            "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer",
            id="20 negative",
        ),
        pytest.param(with_input(data=[1, 2**33 + 7]), "element 1 of input 'INPUT0' is 8589934599, which", id="width"),
        pytest.param(with_input(datatype="UINT8", data=[0, 256]), "does not fit UINT8 (0 to 255)", id="width unsigned"),
        pytest.param(with_input(datatype="UINT64", data=[0, 2**64]), "is 1.8446744073709552e+19", id="width 64"),
        pytest.param(
            with_input(datatype="FP32", data=[True, 1]),
            "Unable to parse 'data': attempt to access JSON non-number as double",
            id="21",
        ),
        pytest.param(
            with_input(datatype="BOOL", data=[1, 0]),
            "Unable to parse 'data': attempt to access JSON non-boolean as boolean",
            id="21 BOOL",
        ),
        pytest.param(
            with_input(datatype="BYTES", data=["a", 1]),
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
            id="21 BYTES",
        ),
        pytest.param(with_input(data=1), "Unable to parse 'data': attempt to access JSON non-array as array", id="22"),
        *(
            pytest.param(
                with_input(datatype=datatype, data=[1.0, 2.0]),
                f"receiving {datatype} data via JSON is not supported. "
                "Please use the binary data format for input INPUT0",
                id=f"23 {datatype}",
            )
            for datatype in ("FP16", "BF16")
        ),
        pytest.param(with_input() | {"outputs": {}}, "Unable to parse 'outputs': ", id="25 no array"),
        pytest.param(with_input() | {"outputs": [{}]}, "Unable to parse 'name': ", id="25 no name"),
        pytest.param(with_input() | {"outputs": ["A"]}, "Unable to parse 'name': ", id="25 no object"),
        pytest.param(
            with_input() | {"id": 5}, "Unable to parse 'id': attempt to access JSON non-string as string", id="32"
        ),
        pytest.param(
            with_input() | {"parameters": [1]},
            "failed to get request params.: attempt to get members for non-object",
            id="33",
        ),
        *(
            pytest.param(
                with_input() | {"parameters": {"a": value}},
                "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.",
                id=f"34 {value}",
            )
            for value in (None, {}, [])
        ),
        pytest.param(
            with_input() | {"parameters": {"triton_foo": 1}},
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
            id="35",
        ),
        pytest.param(
            with_input() | {"parameters": {"sequence_id": 1.5}},
            "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
            id="36",
        ),
        pytest.param(with_input() | {"parameters": {"sequence_id": -1}}, "Unable to parse 'sequence_id'", id="36 -1"),
        pytest.param(
            with_input() | {"parameters": {"sequence_start": 1}},
            "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
            id="37",
        ),
        pytest.param(
            with_input() | {"parameters": {"priority": -1}},
            "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer",
            id="38 priority",
        ),
        pytest.param(
            with_input() | {"parameters": {"timeout": "x"}},
            "Unable to parse 'timeout': attempt to access JSON non-unsigned-integer as unsigned-integer",
            id="38 timeout",
        ),
        pytest.param(
            with_input() | {"outputs": [{"name": "A", "parameters": {"binary_data": 1}}]},
            "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
            id="39",
        ),
        *(
            pytest.param(
                with_input() | {"outputs": [{"name": "A", "parameters": {"classification": value}}]},
                "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
                id=f"40 {value!r}",
            )
            for value in (-1, "x", None, True, 2**40)
        ),
        *(
            pytest.param(
                with_input(data=..., parameters={"binary_data_size": value}),
                "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer",
                id=f"44 {value!r}",
            )
            for value in ("8", -8, None)
        ),
        pytest.param(json.dumps(with_input()).encode() + b" x", "failed to parse the request JSON buffer", id="54"),
        pytest.param(
            with_input()
            | {"outputs": [{"name": "A", "parameters": {"shared_memory_region": "r", "binary_data": True}}]},
            "Output can't set both 'shared_memory_region' and 'binary_data'",
            id="72",
        ),
        pytest.param(b'{"inputs": [], "id": "\xff"}', "Unable to parse 'id': ", id="id of other bytes"),
        pytest.param(b'{"inputs": [], "parameters": {"\xff": 1}}', "Unable to parse 'parameters': ", id="key of bytes"),
        pytest.param(
            b'{"inputs":[{"name":"T","datatype":"BYTES","shape":[1],"data":["\\ud800NaN"]}]}',
            "unpaired surrogate",
            id="surrogate",
        ),
        pytest.param(
            with_input(data=json.loads("[" * 101 + "1,2" + "]" * 101)),
            "JSON nesting depth exceeds maximum allowed limit (100) in input 'INPUT0'",
            id="depth",
        ),
        pytest.param(
            with_input(shape=[2**4, 2**60 + 2]),
            f"input 'INPUT0' causes total element count to exceed maximum size of {2**63 - 1}, 'data' has 2",
            id="elements",
        ),
        pytest.param(with_input(shape=[4, 2**60 - 1]), "byte size overflow for input 'INPUT0'", id="bytes"),
        pytest.param(
            with_input(data=[1, json.loads("[" * 101 + "2" + "]" * 101)]),
            "JSON nesting depth exceeds maximum allowed limit (100) in input 'INPUT0'",
            id="depth, mixed",
        ),
    ],
)
def test_errors_name_the_problem(document, message):
    with pytest.raises(InvalidRequest) as caught:
        decode(document)
    assert message in caught.value.message


def test_binary_data_that_are_missing_or_left_over():
    document = with_input(data=..., parameters={"binary_data_size": 8})
    with pytest.raises(
        InvalidRequest, match="unexpected size for input 'INPUT0', expecting 4 additional bytes for model 'm'"
    ):
        decode(document, b"1234")
    with pytest.raises(InvalidRequest, match="unexpected size for input 'INPUT0', expecting 8 additional bytes"):
        decode(document)
    with pytest.raises(InvalidRequest, match="unexpected additional input data for model 'm'"):
        decode(document, b"123456789")


def test_a_header_length_that_cuts_the_json():
    body = json.dumps(with_input()).encode()
    with pytest.raises(InvalidRequest, match="failed to parse the request JSON buffer"):
        decode_request("m", None, body, len(body) - 3)


@pytest.mark.parametrize(
    "document",
    [
        with_input(data=..., parameters={"shared_memory_region": "r", "shared_memory_byte_size": 8}),
        with_input()
        | {"outputs": [{"name": "A", "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8}}]},
    ],
)
def test_shared_memory_is_refused_where_there_is_none(document):
    with pytest.raises(Unsupported, match=r"'shared_memory_region', here 'r', .* --allow-client-shm=true"):
        decode(document)


# Header length.


@pytest.mark.parametrize(
    ("value", "size", "length"), [(None, 10, None), (None, 0, 0), (b"0", 10, 0), (b"10", 10, 10), (b" 7 ", 10, 7)]
)
def test_header_length(value, size, length):
    assert read_header_length(value, size) == length


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"100000", "inference header size should be in range (0, 174), got: 100000"),
        (b"-1", "inference header size should be in range (0, 174), got: -1"),
        (b"2147483648", "Unable to parse Inference-Header-Content-Length, got: "),
        (b"9" * 5000, "Unable to parse Inference-Header-Content-Length, got: "),
        (b"abc", "Unable to parse Inference-Header-Content-Length, got: 'abc'"),
        (b"1.0", "Unable to parse Inference-Header-Content-Length, got: '1.0'"),
        (b"", "Unable to parse Inference-Header-Content-Length, got: ''"),
        (b"\xff", "Unable to parse Inference-Header-Content-Length, got: "),
    ],
)
def test_a_header_length_that_makes_no_sense(value, message):
    with pytest.raises(InvalidRequest) as caught:
        read_header_length(value, 174)
    assert message in caught.value.message


# Raw requests.


def config(*inputs: TensorSpec, max_batch_size: int = 0) -> ModelConfig:
    return ModelConfig("m", "b", "", max_batch_size, inputs, ())


@pytest.mark.parametrize(
    ("spec", "max_batch_size", "body", "shape", "data"),
    [
        (TensorSpec("I", "INT16", (-1, 2)), 0, b"12345678", (2, 2), b"12345678"),
        (TensorSpec("I", "INT16", (-1, 2)), 4, b"12345678", (1, 2, 2), b"12345678"),
        (TensorSpec("I", "INT16", (-1,)), 0, b"", (0,), b""),
        (TensorSpec("I", "INT16", (4,)), 0, b"12345678", (4,), b"12345678"),
        (TensorSpec("I", "BYTES", (1,)), 4, b"text", (1, 1), b"\x04\0\0\0text"),
    ],
)
def test_raw_request(spec, max_batch_size, body, shape, data):
    request, options = decode_raw_request(config(spec, max_batch_size=max_batch_size), 2, body)
    (tensor,) = request.inputs
    assert (request.model_name, request.version, tensor.name, tensor.shape) == ("m", 2, "I", shape)
    assert bytes(tensor.data) == data
    assert options.binary_default


@pytest.mark.parametrize(
    ("inputs", "body", "message"),
    [
        (
            [TensorSpec(name, "INT8", (1,)) for name in "ABC"],
            b"",
            "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 3 inputs",
        ),
        ([TensorSpec("I", "BYTES", (2,))], b"x", "the model must have input shape [1]"),
        ([TensorSpec("I", "INT8", (-1, -1))], b"x", "more than one variable-sized dimension"),
        ([TensorSpec("I", "INT32", (-1, 2))], b"12345", "'raw_input' for model 'm'. Expected 0, got 5"),
        ([TensorSpec("I", "INT32", (-1, 0))], b"12345678", "'raw_input' for model 'm'. Expected 0, got 8"),
        (
            [TensorSpec("I", "INT16", (3,))],
            b"12345678",
            "input 'raw_input' for model 'm'. Expected 6, got 8: the whole",
        ),
    ],
)
def test_raw_requests_that_say_too_little(inputs, body, message):
    with pytest.raises(InvalidRequest) as caught:
        decode_raw_request(config(*inputs), None, body)
    assert message in caught.value.message


# Responses.


def test_a_response_is_compact_and_in_order():
    header, binary = encode(
        Tensor("A", "INT32", (1, 2), struct.pack("<2i", -1, 7)), id="x", parameters={"p": 1, "q": "ä"}
    )
    assert (
        header
        == (
            '{"id":"x","model_name":"m","model_version":"3","parameters":{"p":1,"q":"ä"},'
            '"outputs":[{"name":"A","datatype":"INT32","shape":[1,2],"data":[-1,7]}]}'
        ).encode()
    )
    assert binary == []


def test_empty_members_are_omitted():
    assert encode() == (b'{"model_name":"m","model_version":"3","outputs":[]}', [])


@pytest.mark.parametrize(
    ("datatype", "data", "text"),
    [
        ("BOOL", b"\1\0", b"[true,false]"),
        ("UINT8", b"\1\xff", b"[1,255]"),
        ("INT8", b"\1\xff", b"[1,-1]"),
        ("UINT64", b"\xff" * 8, b"[18446744073709551615]"),
        ("INT64", b"\0" * 7 + b"\x80", b"[-9223372036854775808]"),
        ("FP32", struct.pack("<3f", 1, 0.1, 1e20), b"[1.0,0.1,1e+20]"),
        ("FP32", struct.pack("<4f", 1, float("nan"), float("inf"), -float("inf")), b"[1.0,NaN,Infinity,-Infinity]"),
        ("FP64", struct.pack("<2d", 0.1, float("nan")), b"[0.1,NaN]"),
        ("FP64", b"", b"[]"),
        ("BYTES", pack_bytes(["ä", '"', "null"]), '["ä","\\"","null"]'.encode()),
        ("BYTES", pack_bytes([b'a"\xff\n', b"b"]), b'["a\\"\xff\\n","b"]'),
        ("BYTES", b"", b"[]"),
    ],
)
def test_output_data_in_json(datatype, data, text):
    header, _ = encode(Tensor("A", datatype, (1,), data))
    assert header.endswith(b'"data":' + text + b"}]}")


def test_nan_in_one_output_and_strings_in_another():
    header, _ = encode(
        Tensor("A", "FP32", (1,), struct.pack("<f", float("nan"))), Tensor("B", "BYTES", (1,), pack_bytes(["null"]))
    )
    assert b'"data":[NaN]' in header
    assert b'"data":["null"]' in header


def test_binary_and_json_outputs_side_by_side():
    halves = memoryview(struct.pack("<2e", 1, 2)).cast("H")
    header, binary = encode(
        Tensor("A", "FP16", (2,), halves),
        Tensor("B", "INT8", (1,), b"\1"),
        Tensor("C", "INT8", (0,), b""),
        options=OutputOptions(True, {"B": False}),
    )
    document = json.loads(header)
    assert [output.get("parameters") for output in document["outputs"]] == [
        {"binary_data_size": 4},
        None,
        {"binary_data_size": 0},
    ]
    assert binary == [struct.pack("<2e", 1, 2), b""]


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_halves_have_no_json(datatype):
    with pytest.raises(
        InvalidRequest,
        match=f"sending {datatype} data via JSON is not supported. Please use the binary data format for output A",
    ):
        encode(Tensor("A", datatype, (1,), b"\0\0"))


@pytest.mark.parametrize(
    ("output", "parameters"),
    [
        (Tensor("A", "INT32", (1,), b"123"), {}),
        (Tensor("A", "BYTES", (1,), b"\xff\0\0\0x"), {}),
        (Tensor("A", "INT8", (1,), b"1"), {"p": 2**70}),
        (Tensor("A", "INT8", (1,), b"1"), {"p": "\ud800"}),
    ],
)
def test_a_response_that_cannot_be_written_is_the_models_failure(output, parameters):
    with pytest.raises(BackendError, match="response of model 'm' cannot be encoded as JSON"):
        encode(output, parameters=parameters)


def test_classification_is_asked_for_the_outputs_it_was_wanted_for():
    outputs = [Tensor(name, "INT8", (1,), b"1") for name in "ABC"]
    response = InferResponse("m", 1, outputs)

    def classify(tensor: Tensor, count: int) -> Tensor:
        return Tensor(tensor.name, "BYTES", (1,), pack_bytes([f"top {count}"]))

    header, _ = encode_response(response, OutputOptions(classes={"B": 2, "C": 0}), classify)
    assert [output["data"] for output in json.loads(header)["outputs"]] == [[49], ["top 2"], [49]]
