"""Triton's generate extension: flat JSON objects instead of tensors with names, shapes and types.

A key with the name of an input becomes a tensor, `id` is the request's id, and other keys become parameters of the
request. The same applies to the keys in the object `parameters`. A response has the outputs, the model's name and
version and the response's parameters in one object, with sorted keys.

Models that are Python functions name in the parameter `json_tensors` of their configuration the tensors whose values
have a structure: a BYTES tensor of JSON is any JSON value, and an array of numbers may be nested lists. `name[]` there
is an output that is a list even if it has one element.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import orjson

from conch.base.errors import InvalidRequest, request_prefix
from conch.domain.model_config import ModelConfig, TensorSpec
from conch.domain.request import InferRequest, InferResponse, Timeline
from conch.domain.tensor import BYTES, Buffer, Tensor, unpack_bytes
from conch.protocols.json_document import parse, shown, text
from conch.protocols.v2_json import data as json_data
from conch.protocols.v2_json import large as large_json
from conch.protocols.v2_json.inference import parameter, read_parameters

JSON_TENSORS, LIST = "json_tensors", "[]"
_NO_TENSORS: frozenset[str] = frozenset()
_NO_PARAMETERS: dict[str, Any] = {}
# All strings of a JSON text; keys have a second group.
_STRINGS = re.compile(rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"(\s*:)?', re.DOTALL)


def decode_request(config: ModelConfig, version: int | None, body: Buffer, timeline: Timeline) -> InferRequest:
    """Decode the body of a generate request. Raises InvalidRequest, also for duplicate keys."""
    request, parameters = _read(config, version, body, timeline)
    read_parameters(request, parameters)
    return request


def _read(
    config: ModelConfig, version: int | None, body: Buffer, timeline: Timeline
) -> tuple[InferRequest, dict[str, Any]]:
    """Return the request without its parameters, and the parameters."""
    document = parse(body)
    if type(document) is not dict:
        raise InvalidRequest(
            f"attempt to get members for non-object; the body of a generate request is an object, not {shown(document)}"
        )
    request = InferRequest(config.name, [], version=version, timeline=timeline)
    if "id" in document:
        request.id = text(document["id"], "id")
    nested = document.get("parameters", _NO_PARAMETERS)
    if type(nested) is not dict:
        raise InvalidRequest(
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object; "
            f"it is {shown(nested)}"
        )
    inputs = {spec.name: spec for spec in config.inputs}
    parameters: dict[str, Any] = {}
    structured = structured_tensors(config)
    batched = config.max_batch_size > 0
    for key, value in document.items():
        if key == "parameters":
            try:
                _convert(request, nested, inputs, parameters, structured, batched=batched)
            except InvalidRequest as error:
                raise InvalidRequest(f"Converting keyword: 'parameters': {error.message}", error.code) from None
        elif key != "id":
            _convert(request, {key: value}, inputs, parameters, structured, batched=batched)
    # Other objects have been refused, so every key of the text belongs to one of these two.
    duplicate = None if structured else _duplicate_key(body, document, nested)
    if duplicate in inputs:
        raise _duplicate_input(request, duplicate)
    if duplicate is not None:
        raise InvalidRequest(f"key {shown(duplicate)} is given twice")
    return request, parameters


def _convert(
    request: InferRequest,
    members: Any,
    inputs: Mapping[str, TensorSpec],
    parameters: dict[str, Any],
    structured: frozenset[str],
    *,
    batched: bool,
) -> None:
    """Add members to the inputs of the request or to `parameters`."""
    for key, value in members.items():
        spec = inputs.get(key)
        if spec is None:
            parameters[key] = parameter(key, value)
        elif any(tensor.name == key for tensor in request.inputs):
            raise _duplicate_input(request, key)
        else:
            tensor = _structured_tensor(spec, value, batched=batched) if key in structured else None
            request.inputs.append(tensor or _tensor(spec, value, batched=batched))


def structured_tensors(config: ModelConfig) -> frozenset[str]:
    """Return the names of the tensors whose values are JSON or nested lists."""
    names = config.parameters.get(JSON_TENSORS)
    return frozenset(names.split(",")) if names else _NO_TENSORS


def _structured_tensor(spec: TensorSpec, value: Any, *, batched: bool) -> Tensor | None:
    """Return the tensor of JSON values or nested lists, None if the value is a flat list or a number."""
    if spec.datatype == BYTES:
        items = value if type(value) is list and (batched or -1 in spec.dims) else [value]
        try:
            return _tensor(spec, [orjson.dumps(item).decode() for item in items], batched=batched)
        except orjson.JSONEncodeError as error:
            raise InvalidRequest(f"input '{spec.name}' cannot be read: {error}") from None
    shape: list[int] = []
    inner = value
    while type(inner) is list:
        shape.append(len(inner))
        inner = inner[0] if inner else None
    declared = [-1, *spec.dims] if batched else spec.dims
    if len(shape) < 2 or len(shape) != len(declared):
        return None
    if any(size not in (-1, given) for size, given in zip(declared, shape, strict=True)):
        raise _no_shape(spec.name)
    return Tensor(spec.name, spec.datatype, shape, json_data.pack(spec.name, spec.datatype, value, prod(shape)))


def _duplicate_input(request: InferRequest, name: str) -> InvalidRequest:
    return InvalidRequest(f"{request_prefix(request.id)}input '{name}' already exists in request")


def _duplicate_key(body: Buffer, document: dict[str, Any], nested: dict[str, Any]) -> str | None:
    """Return a duplicate key of an object in the body, of which the parser keeps only the last."""
    raw_keys = [match[1] for match in _STRINGS.finditer(body) if match[2]]
    if len(raw_keys) == len(document) + len(nested):
        return None
    # Parsed, since equal keys may have different escapes.
    remaining = Counter([*document, *nested])
    for raw in raw_keys:
        key = parse(b'"' + raw + b'"')
        remaining[key] -= 1
        if remaining[key] < 0:
            return str(key)
    return None


def pack_request(spec: Mapping[str, Any], body: Buffer) -> tuple[dict[str, Any], list[Buffer]]:
    """Decode a large body in a worker, with a model's `describe_model`, for `unpack_request` in the server.

    Raises InvalidRequest, also for too many parameters.
    """
    config = ModelConfig(
        name=spec["name"],
        backend="",
        platform="",
        outputs=(),
        max_batch_size=spec["max_batch_size"],
        inputs=tuple(TensorSpec(name, datatype, tuple(dims)) for name, datatype, dims in spec["inputs"]),
        parameters={JSON_TENSORS: spec["structured"]},
    )
    request, parameters = _read(config, None, body, Timeline())
    large_json.check_parameters(parameters)
    large_json.check_count("inputs", len(request.inputs), large_json.MAX_TENSORS)
    described = {
        "id": request.id,
        "parameters": json.dumps(parameters),
        "inputs": [(tensor.name, tensor.datatype, tensor.shape) for tensor in request.inputs],
    }
    return described, [tensor.data for tensor in request.inputs]


def describe_model(config: ModelConfig) -> dict[str, Any]:
    """Return the properties of a model for `pack_request`."""
    return {
        "name": config.name,
        "max_batch_size": config.max_batch_size,
        "inputs": [(spec.name, spec.datatype, spec.dims) for spec in config.inputs],
        "structured": config.parameters.get(JSON_TENSORS, ""),
    }


def unpack_request(
    config: ModelConfig, version: int | None, described: Mapping[str, Any], parts: Sequence[Buffer], timeline: Timeline
) -> InferRequest:
    """Return the request that a worker has decoded. Raises InvalidRequest."""
    tensors = [
        Tensor(name, datatype, shape, data)
        for (name, datatype, shape), data in zip(described["inputs"], parts, strict=True)
    ]
    request = InferRequest(config.name, tensors, version=version, id=described["id"], timeline=timeline)
    read_parameters(request, json.loads(described["parameters"]))
    return request


def describe_response(
    response: InferResponse, structured: frozenset[str] = _NO_TENSORS
) -> tuple[dict[str, Any], list[Buffer]]:
    """Return the arguments of `write_response` in a worker for a large response."""
    described = {
        "id": response.id,
        "model_name": response.model_name,
        "model_version": response.model_version,
        "parameters": response.parameters,
        "outputs": [(tensor.name, tensor.datatype, tensor.shape) for tensor in response.outputs],
        "structured": list(structured),
    }
    return described, [tensor.data for tensor in response.outputs]


def write_response(described: Mapping[str, Any], parts: Sequence[Buffer]) -> bytes:
    """Encode a described response. Raises ConchError as `encode_response` does."""
    tensors = [
        Tensor(name, datatype, shape, data)
        for (name, datatype, shape), data in zip(described["outputs"], parts, strict=True)
    ]
    return encode_response(
        InferResponse(
            described["model_name"],
            described["model_version"],
            tensors,
            id=described["id"],
            parameters=described["parameters"],
        ),
        frozenset(described["structured"]),
    )


def encode_response(response: InferResponse, structured: frozenset[str] = _NO_TENSORS) -> bytes:
    """Encode one response. Raises InvalidRequest for FP16 and BF16 outputs, which have no JSON form."""
    text = _encoded(response, json_data.encode, structured)
    # orjson writes null for NaN and infinities; a false positive, such as a string "null", is only slower.
    return _encoded(response, _exactly, structured) if b"null" in text else text


def _values(tensor: Tensor) -> Any:
    """Return the values of a structured output: JSON as it is, or nested lists. Raises as `json_data.encode`."""
    if tensor.datatype != BYTES:
        flat = json_data.encode(tensor)
        nested = flat.reshape(tensor.shape) if len(flat) > 1 else flat
        if flat.dtype.kind != "f" or np.isfinite(flat).all():
            return nested
        return [orjson.Fragment(json.dumps(row)) for row in nested.tolist()]
    elements = unpack_bytes(tensor.data)
    try:
        for element in elements:
            orjson.loads(element)  # a model may write anything
    except orjson.JSONDecodeError:  # NaN, too
        return json_data.encode(tensor)
    return [orjson.Fragment(element) for element in elements]


def _exactly(tensor: Tensor) -> Any:
    written = json_data.write_exactly(tensor)
    return orjson.Fragment(written[1:-1] if prod(tensor.shape) == 1 else written)


def _encoded(response: InferResponse, encode: Callable[[Tensor], Any], structured: frozenset[str]) -> bytes:
    document: dict[str, Any] = dict(response.parameters)
    for tensor in response.outputs:
        values = _values(tensor) if tensor.name in structured else encode(tensor)
        is_list = not isinstance(values, orjson.Fragment)
        single = is_list and len(values) == 1 and f"{tensor.name}{LIST}" not in structured
        document[tensor.name] = values[0] if single else values
    if response.id:
        document["id"] = response.id
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS)


def _tensor(spec: TensorSpec, value: Any, *, batched: bool) -> Tensor:
    data = value if type(value) is list else [value]
    if spec.datatype == BYTES:
        packed = json_data.pack(spec.name, BYTES, data, len(data))  # elements are checked before the shape
        return Tensor(spec.name, BYTES, _shape(spec, len(data), batched=batched), packed)
    shape = _shape(spec, len(data), batched=batched)
    if spec.datatype in ("FP16", "BF16"):
        raise json_data.not_in_json(spec.name, spec.datatype)
    return Tensor(spec.name, spec.datatype, shape, json_data.pack(spec.name, spec.datatype, data, prod(shape)))


def _shape(spec: TensorSpec, count: int, *, batched: bool) -> list[int]:
    """Return the declared shape for `count` elements: the last variable dimension takes them, other ones are 1."""
    shape = [-1, *spec.dims] if batched else list(spec.dims)
    fixed = prod(size for size in shape if size > 0)
    if not fixed or count % fixed or (-1 not in shape and count != fixed):
        raise _no_shape(spec.name)
    size = count // fixed
    for index in reversed(range(len(shape))):
        if shape[index] == -1:
            shape[index], size = size, 1
    return shape


def _no_shape(name: str) -> InvalidRequest:
    return InvalidRequest(f"The schema can not convert input '{name}' to tensor with proper shape")
