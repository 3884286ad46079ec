# Compiled by mypyc in wheels.
"""Inference requests and responses of the KServe v2 protocol over HTTP, with Triton's binary tensor data extension.

A body is JSON, or JSON followed by the bytes of the binary tensors in order, or (a "raw" request) only the bytes of the
only input. The header `Inference-Header-Content-Length` has the size of the JSON part. Error messages contain
Triton's, because clients match on them.
"""

from collections.abc import Callable, Iterable, Set
from functools import lru_cache
from math import prod
from typing import Any, Final

import orjson

from conch.base.errors import BackendError, InvalidRequest, request_prefix
from conch.domain.model_config import ModelConfig
from conch.domain.request import (
    SEQUENCE_END,
    SEQUENCE_START,
    InferRequest,
    InferResponse,
    ParameterValue,
    Timeline,
    checked_correlation_id,
)
from conch.domain.tensor import BYTES, DATATYPES, MAX_RANK, Buffer, Tensor, byte_size, pack_bytes
from conch.protocols.json_document import (
    MAX_UINT64,
    array,
    boolean,
    member,
    mistyped,
    parameters_of,
    parse,
    shown,
    text,
    unsigned,
)
from conch.protocols.regions import NO_REGIONS, REGION, RegionBytes, Regions, write_output
from conch.protocols.v2_json.data import encode, encode_exactly, not_in_json, pack
from conch.protocols.v2_json.regions import read_window

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1

RESERVED_PREFIX: Final = "triton_"
RESERVED_PARAMETERS: Final = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output", "headers"}
)


class OutputOptions:
    """The requested forms of the outputs of one request.

    `binary` has for each requested output whether it is binary data; `binary_default` is for responses with all
    outputs. `classes` has the numbers of classes of outputs to be classified; `parts` has the shared memory of outputs.
    `placed` are the outputs that have already been written to shared memory.
    """

    __slots__ = ("binary", "binary_default", "classes", "parts", "placed")

    def __init__(
        self, binary_default: bool = False, binary: dict[str, bool] | None = None, classes: dict[str, int] | None = None
    ) -> None:
        self.binary_default = binary_default
        self.binary = binary or {}
        self.classes = classes or {}
        self.parts: dict[str, RegionBytes] = {}
        self.placed: Set[str] = _NONE


_NONE: Final[Set[str]] = frozenset()

_ALL_JSON: Final = OutputOptions()
ALL_BINARY: Final = OutputOptions(binary_default=True)


def read_header_length(value: bytes | None, body_size: int) -> int | None:
    """Return the size of the JSON part of a body, None if all of it is JSON, 0 for a raw request.

    `value` is the header `Inference-Header-Content-Length`; an empty body without it is a raw request.
    Raises InvalidRequest for a value that is not a number or exceeds the body.
    """
    if value is None:
        return None if body_size else 0
    length: int = _header_length(value)
    if not 0 <= length <= body_size:
        raise InvalidRequest(f"inference header size should be in range (0, {body_size}), got: {length}")
    return length


@lru_cache(maxsize=256)  # a client's requests mostly have the same
def _header_length(value: bytes) -> int:
    digits = value.strip()
    if not digits.removeprefix(b"-").isdigit() or len(digits) > 11 or int(digits) > MAX_INT32:
        raise InvalidRequest(
            f"Unable to parse Inference-Header-Content-Length, got: {shown(digits.decode('latin-1'))}; "
            "it is the size of the JSON part of the body in bytes"
        )
    return int(digits)


def decode_request(
    model_name: str,
    version: int | None,
    body: Buffer,
    header_length: int | None,
    timeline: Timeline | None = None,
    regions: Regions = NO_REGIONS,
) -> tuple[InferRequest, OutputOptions]:
    """Decode a request in JSON, with binary data after `header_length` bytes if that is not None.

    Binary tensors are views of the body. Raises ConchError, naming the invalid member.
    """
    if header_length is None:
        return decode_parts(model_name, version, body, _NO_BYTES, timeline, regions)
    view = memoryview(body)
    return decode_parts(model_name, version, view[:header_length], view[header_length:], timeline, regions)


def decode_parts(
    model_name: str,
    version: int | None,
    header: Buffer,
    tail: memoryview,
    timeline: Timeline | None,
    regions: Regions,
    packed: list[Buffer] | None = None,
) -> tuple[InferRequest, OutputOptions]:
    """Decode a request with separate JSON and binary data. `packed` are the wire bytes of its `data` arrays, in order.

    With `packed`, the values of `data` are ignored. Raises as `decode_request`.
    """
    document = parse_object(header)
    request = InferRequest(model_name, [], version=version, timeline=timeline)
    if "id" in document:
        request.id = text(document["id"], "id")
    binary_default = False
    if "parameters" in document:
        binary_default = read_parameters(request, parameters_of(document))
    entries = array(member(document, "inputs"), "inputs")
    position = 0
    for entry in entries:
        tensor, position = _read_input(request, entry, tail, position, regions, packed)
        request.inputs.append(tensor)
    if position != len(tail):
        raise InvalidRequest(
            f"unexpected additional input data for model '{model_name}': "
            f"{len(tail) - position} bytes after the last binary input"
        )
    if "outputs" in document:
        return request, _read_outputs(request, array(document["outputs"], "outputs"), binary_default, regions)
    return request, ALL_BINARY if binary_default else _ALL_JSON


def parse_object(header: Buffer) -> dict[str, Any]:
    """Return the members of a request in JSON; none if it is not an object, so that the first required one fails."""
    document = parse(header)
    return document if type(document) is dict else _NO_PARAMETERS


_NO_BYTES: Final = memoryview(b"")
_NO_PARAMETERS: Final[dict[str, Any]] = {}


def encode_response(
    response: InferResponse, options: OutputOptions, classify: Callable[[Tensor, int], Tensor]
) -> tuple[bytes, list[Buffer]]:
    """Encode a response: its JSON, and the bytes of the binary outputs that follow it.

    Outputs with shared memory are written there. `classify` classifies an output with a number of classes. Raises
    InvalidRequest if an output does not support its requested form, BackendError if the model's data have no JSON form.
    """
    outputs = response.outputs
    if options.classes:
        # Zero classes mean no classification.
        counts = [options.classes.get(tensor.name, 0) for tensor in outputs]
        outputs = [classify(tensor, count) if count else tensor for tensor, count in zip(outputs, counts, strict=True)]
    if options.parts and not options.placed:
        place(outputs, options)
    try:
        header, binary = _write(response, outputs, options, encode)
        if header.find(b"null") >= 0:  # `in` on bytes raises an exception inside CPython
            # orjson writes null for NaN and infinities; a false positive, such as a string "null", is only slower.
            header, binary = _write(response, outputs, options, encode_exactly)
    except (orjson.JSONEncodeError, ValueError) as error:
        raise BackendError(f"response of model '{response.model_name}' cannot be encoded as JSON: {error}") from None
    return header, binary


def place(outputs: Iterable[Tensor], options: OutputOptions) -> None:
    """Write the outputs with shared memory there. Raises BackendError if one is too large."""
    for tensor in outputs:
        if tensor.name in options.parts:
            write_output(tensor, options.parts[tensor.name])


def _write(
    response: InferResponse, outputs: Iterable[Tensor], options: OutputOptions, encode_data: Callable[[Tensor], Any]
) -> tuple[bytes, list[Buffer]]:
    entries: list[bytes] = []
    binary: list[Buffer] = []
    for tensor in outputs:
        name = tensor.name
        if name in options.parts or name in options.placed:  # already written
            entries.append(_entry(name, tensor.datatype, tensor.shape, -1))
        elif options.binary.get(name, options.binary_default):
            data = tensor.data if type(tensor.data) is bytes else memoryview(tensor.data).cast("B")
            entries.append(_entry(name, tensor.datatype, tensor.shape, len(data)))
            binary.append(data)
        else:
            data = orjson.dumps(encode_data(tensor), option=orjson.OPT_SERIALIZE_NUMPY)
            entries.append(b'%b,"data":%b}' % (_entry(name, tensor.datatype, tensor.shape, -1)[:-1], data))
    head = _model(response.model_name, response.model_version)
    if response.id:
        head = b'"id":%b,%b' % (orjson.dumps(response.id), head)
    if response.parameters:
        head += b',"parameters":' + orjson.dumps(response.parameters)
    return b'{%b,"outputs":[%b]}' % (head, b",".join(entries)), binary


# What the responses of a model have in common is written once.


@lru_cache(maxsize=1024)
def _entry(name: str, datatype: str, shape: tuple[int, ...], binary_size: int) -> bytes:
    """Write an output without data in JSON; `binary_size` is -1 if it has no binary data either."""
    entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if binary_size >= 0:
        entry["parameters"] = {"binary_data_size": binary_size}
    return orjson.dumps(entry, option=orjson.OPT_SERIALIZE_NUMPY)


@lru_cache(maxsize=1024)
def _model(name: str, version: int) -> bytes:
    return orjson.dumps({"model_name": name, "model_version": str(version)})[1:-1]


def read_parameters(request: InferRequest, parameters: dict[str, Any]) -> bool:
    """Set attributes of the request from its parameters. Return `binary_data_output`."""
    binary_default = False
    for key, value in parameters.items():
        if key == "sequence_id":
            request.correlation_id = _sequence_id(value)
        elif key == "sequence_start":
            request.flags |= SEQUENCE_START if boolean(value, key) else 0
        elif key == "sequence_end":
            request.flags |= SEQUENCE_END if boolean(value, key) else 0
        elif key == "priority":
            request.priority = unsigned(value, key)
        elif key == "timeout":
            request.timeout_us = unsigned(value, key)
        elif key == "binary_data_output":
            binary_default = boolean(value, key)
        else:
            request.parameters[text(key, "parameters")] = parameter(key, value)
    return binary_default


def _sequence_id(value: Any) -> int | str:
    if type(value) is int and 0 <= value <= MAX_UINT64:
        return value
    return checked_correlation_id(text(value, "sequence_id"))


def parameter(key: str, value: Any) -> ParameterValue:
    """Return the value of a custom parameter. Raises InvalidRequest for a reserved key or an unsupported type."""
    if key.startswith(RESERVED_PREFIX):
        raise InvalidRequest(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            f" Got '{key}'."
        )
    if type(value) is str:
        return text(value, key)
    if type(value) in (int, bool, float):
        checked: int | bool | float = value
        return checked
    raise InvalidRequest(
        f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'. It is {shown(value)}."
    )


def _read_input(
    request: InferRequest,
    entry: Any,
    tail: memoryview,
    position: int,
    regions: Regions,
    packed: list[Buffer] | None,
) -> tuple[Tensor, int]:
    """Decode one input: from JSON or `packed`, shared memory, or the bytes of `tail` at `position`.

    Return it with the position after these bytes.
    """
    parameters = _input_parameters(entry)
    source = _source(entry, parameters)
    name, datatype, shape = _form(entry)
    window = read_window(parameters, name, regions) if parameters else None
    if window is not None:
        return window.input(regions, name, datatype, shape, request), position
    if source == "data":
        data = _packed_data(name, datatype, shape, entry["data"]) if packed is None else packed.pop(0)
        return Tensor(name, datatype, shape, data), position
    end = position + unsigned(parameters["binary_data_size"], "binary_data_size")
    if end > len(tail):
        raise InvalidRequest(
            f"unexpected size for input '{name}', expecting {end - len(tail)} additional bytes "
            f"for model '{request.model_name}'"
        )
    return Tensor(name, datatype, shape, tail[position:end]), end


def read_data(entry: Any) -> bytes | None:
    """Return the wire bytes of an input's `data`, or None without. Raises InvalidRequest as `decode_request`."""
    parameters = _input_parameters(entry)
    if _source(entry, parameters) != "data":
        return None
    name, datatype, shape = _form(entry)
    if parameters:
        read_window(parameters, name, NO_REGIONS)
    return _packed_data(name, datatype, shape, entry["data"])


def _input_parameters(entry: Any) -> dict[str, Any]:
    if type(entry) is not dict:
        raise _one_source("no field is set; each of 'inputs' is an object, not " + shown(entry))
    # Triton ignores null here, which serializers write for members that are not set.
    return _NO_PARAMETERS if entry.get("parameters") is None else parameters_of(entry)


def _form(entry: dict[str, Any]) -> tuple[str, str, list[int]]:
    """Return name, datatype and shape of an input."""
    name = text(member(entry, "name"), "name")
    datatype = text(member(entry, "datatype"), "datatype")
    shape = _shape(name, member(entry, "shape"))
    if datatype not in DATATYPES:
        raise InvalidRequest(
            f"invalid datatype for input {name}: {shown(datatype)}, expected one of {', '.join(sorted(DATATYPES))}"
        )
    return name, datatype, shape


def _packed_data(name: str, datatype: str, shape: list[int], data: Any) -> bytes:
    if datatype in ("FP16", "BF16"):
        raise not_in_json(name, datatype)
    return pack(name, datatype, data, prod(shape))


def _source(entry: dict[str, Any], parameters: dict[str, Any]) -> str:
    """Return the name of the one field that has the data of an input."""
    if not parameters and "data" in entry:
        return "data"
    fields = ["data"] if "data" in entry else []
    if "binary_data_size" in parameters:
        fields.append("binary_data_size")
    if "shared_memory_region" in parameters:
        fields.append("shared_memory_region")
    if len(fields) == 1:
        return fields[0]
    raise _one_source(f"set {' '.join(repr(field) for field in fields)}" if fields else "no field is set")


def _one_source(problem: str) -> InvalidRequest:
    return InvalidRequest(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But {problem}"
    )


def _shape(name: str, value: Any) -> list[int]:
    shape = array(value, "shape")
    for dim in shape:
        if type(dim) is not int or not 0 <= dim <= MAX_INT64:
            raise mistyped("shape", "unsigned-integer", dim)
    if len(shape) > MAX_RANK:
        raise InvalidRequest(f"shape of input '{name}' has {len(shape)} dimensions, at most {MAX_RANK} are possible")
    return shape


def _read_outputs(request: InferRequest, entries: list[Any], binary_default: bool, regions: Regions) -> OutputOptions:
    """Set the requested outputs of the request, and return their forms."""
    options = OutputOptions(binary_default)
    for entry in entries:
        name = text(member(entry, "name"), "name")
        parameters = _NO_PARAMETERS if entry.get("parameters") is None else parameters_of(entry)
        if "classification" in parameters:
            options.classes[name] = _class_count(name, parameters["classification"])
        binary = parameters.get("binary_data", False)
        if type(binary) is not bool:
            raise mistyped("binary_data", "boolean", binary)
        options.binary[name] = binary
        if REGION in parameters and (binary or "classification" in parameters):
            key = "binary_data" if binary else "classification"
            raise InvalidRequest(f"Output can't set both '{REGION}' and '{key}'")
        window = read_window(parameters, name, regions) if parameters else None
        if window is not None:
            options.parts[name] = window.output(regions)
            request.destinations = options.parts
    request.outputs = tuple(options.binary)
    return options


def _class_count(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INT32:
        raise InvalidRequest(
            "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer; "
            f"for output '{name}' it is {shown(value)}"
        )
    return value


def decode_raw_request(
    config: ModelConfig, version: int | None, body: Buffer, timeline: Timeline | None = None
) -> tuple[InferRequest, OutputOptions]:
    """Decode a request whose whole body is the data of the model's only input.

    Its batch size is 1; one variable dimension is computed from the size. A BYTES input of shape [1] has the body as
    its element. All outputs are sent as binary data. Raises InvalidRequest.
    """
    if len(config.inputs) != 1:
        raise _refused_raw(
            "Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(config.inputs)} inputs in '{config.name}' model configuration"
        )
    spec = config.inputs[0]
    if spec.datatype == BYTES:
        if spec.dims != (1,):
            raise _refused_raw(f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]")
        data: Buffer = pack_bytes([body])
        dims = [1]
    else:
        data = body
        dims = _deduced_dims(config, len(body))
    shape = [1, *dims] if config.max_batch_size > 0 else dims
    tensor = Tensor(spec.name, spec.datatype, shape, data)
    return InferRequest(config.name, [tensor], version=version, timeline=timeline), ALL_BINARY


def _deduced_dims(config: ModelConfig, size: int) -> list[int]:
    """Return the dims with the variable one computed. Raises InvalidRequest if the size does not match."""
    name, datatype, dims = config.inputs[0].name, config.inputs[0].datatype, config.inputs[0].dims
    variable = [index for index, dim in enumerate(dims) if dim < 0]
    if not variable:
        if size != (expected := byte_size(datatype, list(dims))):
            raise _wrong_raw_size(config, expected, size)
        return list(dims)
    if len(variable) > 1:
        raise _refused_raw(
            f"The shape of the raw input '{name}' can not be deduced because there are more than one variable-sized "
            f"dimension: {list(dims)}"
        )
    row = byte_size(datatype, [dim for dim in dims if dim >= 0])
    if not row or size % row:
        raise _wrong_raw_size(config, size - size % row if row else 0, size)
    return [size // row if dim < 0 else dim for dim in dims]


def _wrong_raw_size(config: ModelConfig, expected: int, got: int) -> InvalidRequest:
    return _refused_raw(
        f"input byte size mismatch for input 'raw_input' for model '{config.name}'. Expected {expected}, got {got}: "
        f"the whole body is the input '{config.inputs[0].name}'"
    )


def _refused_raw(message: str) -> InvalidRequest:
    return InvalidRequest(request_prefix("") + message)
