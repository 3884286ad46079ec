"""Triton's generate extension: flat JSON objects instead of tensors with names, shapes and types.

A key that is the name of an input becomes that tensor, `id` the request's id, and every other key a parameter of the
request; `parameters` is an object whose keys are read the same way. An answer has the outputs, the model's name and
version and the response's parameters in one object, its keys sorted.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import orjson

from conch.errors import InvalidRequest
from conch.model_config import ModelConfig, TensorSpec
from conch.protocol import json_data
from conch.protocol.json_document import parse, shown, text
from conch.protocol.v2_json import read_parameters
from conch.request import InferRequest, InferResponse, Timeline
from conch.tensor import BYTES, Buffer, Tensor

# How often `parameters` may hold `parameters`.
_LEVELS = 8


def decode_request(config: ModelConfig, version: int | None, body: Buffer, timeline: Timeline) -> InferRequest:
    """Read the body of a generate request. Raises InvalidRequest."""
    document = parse(body)
    if type(document) is not dict:
        raise InvalidRequest(f"the body of a generate request must be a JSON object, not {shown(document)}")
    request = InferRequest(config.name, [], version=version, timeline=timeline)
    inputs = {spec.name: spec for spec in config.inputs}
    parameters: dict[str, Any] = {}
    for key, value in _flattened(document):
        if key in inputs:
            request.inputs.append(_tensor(inputs[key], value, batched=config.max_batch_size > 0))
        elif key == "id":
            request.id = text(value if type(value) is str else str(value), key)
        else:
            parameters[key] = value
    read_parameters(request, parameters)
    return request


def encode_response(response: InferResponse) -> bytes:
    """Write one response. Raises InvalidRequest for an output that JSON does not carry (FP16, BF16)."""
    document: dict[str, Any] = dict(response.parameters)
    for tensor in response.outputs:
        values = json_data.encode(tensor)
        document[tensor.name] = values[0] if len(values) == 1 else values
    if response.id:
        document["id"] = response.id
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS)


def _flattened(document: Mapping[str, Any], levels: int = _LEVELS) -> list[tuple[str, Any]]:
    if not levels:
        raise InvalidRequest(f"'parameters' of a generate request are nested more than {_LEVELS} times")
    pairs: list[tuple[str, Any]] = []
    for key, value in document.items():
        if key == "parameters" and type(value) is dict:
            pairs += _flattened(value, levels - 1)
        else:
            pairs.append((key, value))
    return pairs


def _tensor(spec: TensorSpec, value: Any, *, batched: bool) -> Tensor:
    data = value if type(value) is list else [value]
    shape = _shape(spec, len(data), batched=batched)
    if any(type(element) is list for element in data):
        raise _no_shape(spec.name)
    if spec.datatype == BYTES:
        # What stands where a text is wanted is taken as written: an object may be meant as JSON for the model.
        data = [element if type(element) is str else _written(spec.name, element) for element in data]
    return Tensor(spec.name, spec.datatype, shape, json_data.pack(spec.name, spec.datatype, data, len(data)))


def _written(name: str, value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise InvalidRequest(f"input '{name}' cannot be written as text: {error}") from None


def _shape(spec: TensorSpec, count: int, *, batched: bool) -> list[int]:
    """Spread `count` elements over the declared shape: its innermost free dimension takes them, others are 1."""
    shape = [-1, *spec.dims] if batched else list(spec.dims)
    fixed = prod(size for size in shape if size > 0)
    if not fixed or count % fixed or (-1 not in shape and count != fixed):
        raise _no_shape(spec.name)
    rest = count // fixed
    for place in reversed(range(len(shape))):
        if shape[place] == -1:
            shape[place], rest = rest, 1
    return shape


def _no_shape(name: str) -> InvalidRequest:
    return InvalidRequest(f"The schema can not convert input '{name}' to tensor with proper shape")
