"""Inference requests and responses of the KServe v2 protocol over HTTP, with Triton's binary tensor data extension.

A body is JSON, or JSON followed by the bytes of the binary tensors in order, or (a "raw" request) nothing but the bytes
of the only input. The header `Inference-Header-Content-Length` says how much of the body is JSON.
Texts of errors contain Triton's wording, since clients match on it.
"""

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import orjson

from conch.errors import BackendError, InvalidRequest
from conch.model_config import ModelConfig
from conch.protocol.json_data import encode, encode_exactly, not_in_json, pack
from conch.protocol.json_document import (
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
from conch.protocol.regions import NO_REGIONS, REGION, Part, Regions, put
from conch.protocol.regions_json import read_window
from conch.request import SEQUENCE_END, SEQUENCE_START, InferRequest, InferResponse, ParameterValue, Timeline
from conch.tensor import BYTES, DATATYPES, MAX_RANK, Buffer, Tensor, byte_size, pack_bytes

MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1

RESERVED_PREFIX = "triton_"
RESERVED_PARAMETERS = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output", "headers"}
)


class OutputOptions:
    """How the outputs of one request are to be sent.

    `binary` says whether as binary data, for outputs that were asked for by name, `binary_default` for the others.
    `classes` are the outputs to be sent as classifications, with the number of classes; `parts` those that are put
    into shared memory, and where.
    """

    __slots__ = ("binary", "binary_default", "classes", "parts")

    def __init__(
        self, binary_default: bool = False, binary: dict[str, bool] | None = None, classes: dict[str, int] | None = None
    ) -> None:
        self.binary_default = binary_default
        self.binary = binary or {}
        self.classes = classes or {}
        self.parts: dict[str, Part] = {}


_ALL_JSON = OutputOptions()
_ALL_BINARY = OutputOptions(binary_default=True)


def read_header_length(value: bytes | None, body_size: int) -> int | None:
    """Return the size of the JSON part of a body, None if all of it is JSON, 0 for a raw request.

    `value` is the header `Inference-Header-Content-Length`; an empty body without it counts as a raw request.
    Raises InvalidRequest if the value is no number or does not fit the body.
    """
    if value is None:
        return None if body_size else 0
    digits = value.strip()
    if not digits.removeprefix(b"-").isdigit() or len(digits) > 11 or int(digits) > MAX_INT32:
        raise InvalidRequest(
            f"Unable to parse Inference-Header-Content-Length, got: {shown(digits.decode('latin-1'))}; "
            "it is the size of the JSON part of the body in bytes"
        )
    length = int(digits)
    if not 0 <= length <= body_size:
        raise InvalidRequest(f"inference header size should be in range (0, {body_size}), got: {length}")
    return length


def decode_request(
    model_name: str,
    version: int | None,
    body: Buffer,
    header_length: int | None,
    timeline: Timeline | None = None,
    regions: Regions = NO_REGIONS,
) -> tuple[InferRequest, OutputOptions]:
    """Read a request in JSON, with binary data behind `header_length` bytes if that is not None.

    Binary tensors are views of the body, those in shared memory copies. Raises ConchError, naming the member at fault.
    """
    if header_length is None:
        header, tail = body, _NO_BYTES
    else:
        view = memoryview(body)
        header, tail = view[:header_length], view[header_length:]
    document = parse(header)
    if type(document) is not dict:
        document = _NO_PARAMETERS  # without members, so that the first that is needed is named
    request = InferRequest(model_name, [], version=version, timeline=timeline)
    if "id" in document:
        request.id = text(document["id"], "id")
    binary_default = False
    if "parameters" in document:
        binary_default = read_parameters(request, parameters_of(document))
    entries = array(member(document, "inputs"), "inputs")
    position = 0
    for entry in entries:
        tensor, position = _read_input(request, entry, tail, position, regions)
        request.inputs.append(tensor)
    if position != len(tail):
        raise InvalidRequest(
            f"unexpected additional input data for model '{model_name}': "
            f"{len(tail) - position} bytes behind the last binary input"
        )
    if "outputs" in document:
        return request, _read_outputs(request, array(document["outputs"], "outputs"), binary_default, regions)
    return request, _ALL_BINARY if binary_default else _ALL_JSON


_NO_BYTES = memoryview(b"")
_NO_PARAMETERS: dict[str, Any] = {}


def decode_raw_request(
    config: ModelConfig, version: int | None, body: Buffer, timeline: Timeline | None = None
) -> tuple[InferRequest, OutputOptions]:
    """Read a request whose whole body is the data of the model's only input.

    Its batch size is 1; one dimension that the configuration leaves open follows from the size. A BYTES input of shape
    [1] takes the body as its element. All outputs are sent as binary data. Raises InvalidRequest.
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
    return InferRequest(config.name, [tensor], version=version, timeline=timeline), _ALL_BINARY


def encode_response(
    response: InferResponse, options: OutputOptions, classify: Callable[[Tensor, int], Tensor]
) -> tuple[bytes, list[Buffer]]:
    """Write a response: its JSON, and the bytes of the binary outputs that follow it, if any.

    Outputs that are wanted in shared memory are put there. `classify` turns an output into its classification with the
    given number of classes. Raises InvalidRequest if an output cannot be sent as asked, BackendError if what the model
    gave has no JSON form.
    """
    outputs = response.outputs
    if options.classes:
        # Zero classes mean that none are wanted.
        counts = [options.classes.get(tensor.name, 0) for tensor in outputs]
        outputs = [classify(tensor, count) if count else tensor for tensor, count in zip(outputs, counts, strict=True)]
    if options.parts:
        for tensor in outputs:
            if tensor.name in options.parts:
                put(tensor, options.parts[tensor.name])
    try:
        header, binary = _write(response, outputs, options, encode)
        if b"null" in header:
            # What orjson writes for NaN and infinities; a false alarm, such as a string "null", costs only time.
            header, binary = _write(response, outputs, options, encode_exactly)
    except (orjson.JSONEncodeError, ValueError) as error:
        raise BackendError(f"response of model '{response.model_name}' cannot be written as JSON: {error}") from None
    return header, binary


def _write(
    response: InferResponse, outputs: Iterable[Tensor], options: OutputOptions, encode_data: Callable[[Tensor], Any]
) -> tuple[bytes, list[Buffer]]:
    entries: list[dict[str, Any]] = []
    binary: list[Buffer] = []
    for tensor in outputs:
        name = tensor.name
        entry: dict[str, Any] = {"name": name, "datatype": tensor.datatype, "shape": tensor.shape}
        if name in options.parts:
            pass  # its bytes are there already
        elif options.binary.get(name, options.binary_default):
            data = tensor.data if type(tensor.data) is bytes else memoryview(tensor.data).cast("B")
            entry["parameters"] = {"binary_data_size": len(data)}
            binary.append(data)
        else:
            entry["data"] = encode_data(tensor)
        entries.append(entry)
    document: dict[str, Any] = {"id": response.id} if response.id else {}
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    if response.parameters:
        document["parameters"] = response.parameters
    document["outputs"] = entries
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY), binary


def read_parameters(request: InferRequest, parameters: dict[str, Any]) -> bool:
    """Move the request's parameters to where they belong. Return `binary_data_output`."""
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
    return text(value, "sequence_id")


def parameter(key: str, value: Any) -> ParameterValue:
    """Return a request's parameter of the client's own. Raises InvalidRequest for a reserved key or another type."""
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
    request: InferRequest, entry: Any, tail: memoryview, position: int, regions: Regions
) -> tuple[Tensor, int]:
    """Read one input, its data being JSON, in shared memory, or the bytes of `tail` at `position`.

    Return the position behind them.
    """
    if type(entry) is not dict:
        raise _one_source("no field is set; each of 'inputs' is an object, not " + shown(entry))
    parameters = parameters_of(entry) if "parameters" in entry else _NO_PARAMETERS
    source = _source(entry, parameters)
    name = text(member(entry, "name"), "name")
    datatype = text(member(entry, "datatype"), "datatype")
    shape = _shape(name, member(entry, "shape"))
    if datatype not in DATATYPES:
        raise InvalidRequest(
            f"invalid datatype for input {name}: {shown(datatype)} is none of {', '.join(sorted(DATATYPES))}"
        )
    window = read_window(parameters, name, regions) if parameters else None
    if window is not None:
        return window.input(regions, name, datatype, shape, request), position
    if source == "data":
        if datatype in ("FP16", "BF16"):
            raise not_in_json(name, datatype)
        return Tensor(name, datatype, shape, pack(name, datatype, entry["data"], prod(shape))), position
    end = position + unsigned(parameters["binary_data_size"], "binary_data_size")
    if end > len(tail):
        raise InvalidRequest(
            f"unexpected size for input '{name}', expecting {end - len(tail)} additional bytes "
            f"for model '{request.model_name}'"
        )
    return Tensor(name, datatype, shape, tail[position:end]), end


def _source(entry: dict[str, Any], parameters: dict[str, Any]) -> str:
    """Return the one field that says where the data of an input are."""
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


def _one_source(but: str) -> InvalidRequest:
    return InvalidRequest(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But {but}"
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
    """Note which outputs are wanted, on the request, and how each is to be sent."""
    options = OutputOptions(binary_default)
    for entry in entries:
        name = text(member(entry, "name"), "name")
        parameters = parameters_of(entry) if "parameters" in entry else _NO_PARAMETERS
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


def _deduced_dims(config: ModelConfig, size: int) -> list[int]:
    """Fill in the one dimension that may be open. Raises InvalidRequest if the size is another one."""
    name, datatype, dims = config.inputs[0].name, config.inputs[0].datatype, config.inputs[0].dims
    open_dims = [index for index, dim in enumerate(dims) if dim < 0]
    if not open_dims:
        if size != (expected := byte_size(datatype, list(dims))):
            raise _wrong_raw_size(config, expected, size)
        return list(dims)
    if len(open_dims) > 1:
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
    return InvalidRequest(f"[request id: <id_unknown>] {message}")
