"""Responses as bytes, for a cache in another program. Entries are untrusted when they are read."""

from math import prod
from typing import Any, Final

import orjson

from conch.domain.request import InferResponse
from conch.domain.tensor import BYTES, DATATYPES, MAX_RANK, Tensor, byte_size, unpack_bytes

# An entry is this, the size of the head in 4 bytes, the head in JSON, and the tensors.
_MAGIC: Final = b"CNC1"
_PREFIX_BYTES: Final = 8
_MAX_HEAD_BYTES: Final = 1 << 20
MAX_ENTRY_BYTES: Final = 16 << 20
_MAX_STRING_BYTES: Final = 1 << 20  # of tensors whose elements have to be looked at one by one
_MAX_DIMENSION: Final = 2**63 - 1


def encode_entry(response: InferResponse) -> bytes | None:
    """Return a response as an entry, None if it is too large or has values that JSON does not."""
    outputs = response.outputs
    strings = sum(tensor.nbytes for tensor in outputs if tensor.datatype == BYTES)
    if strings > _MAX_STRING_BYTES or sum(tensor.nbytes for tensor in outputs) > MAX_ENTRY_BYTES:
        return None
    forms = [(tensor.name, tensor.datatype, tensor.shape, tensor.nbytes) for tensor in outputs]
    try:
        head = orjson.dumps((forms, response.parameters))
    except TypeError:
        return None
    if len(head) > _MAX_HEAD_BYTES:
        return None
    return b"".join((_MAGIC, len(head).to_bytes(4, "little"), head, *[tensor.data for tensor in outputs]))


def decode_entry(entry: bytes, model: str, version: int) -> InferResponse:
    """Return the response of an entry. Raises ValueError for one that this server could not have written."""
    if entry[:4] != _MAGIC or len(entry) > MAX_ENTRY_BYTES + _MAX_HEAD_BYTES + _PREFIX_BYTES:
        raise ValueError("not an entry")
    position = _PREFIX_BYTES + int.from_bytes(entry[4:8], "little")
    if not _PREFIX_BYTES < position <= min(len(entry), _PREFIX_BYTES + _MAX_HEAD_BYTES):
        raise ValueError("size of the head")
    head: Any = orjson.loads(entry[_PREFIX_BYTES:position])
    if type(head) is not list or len(head) != 2:
        raise ValueError("form of the head")
    forms, parameters = head
    if type(forms) is not list or type(parameters) is not dict:
        raise ValueError("form of the head")
    if not all(isinstance(value, (str, bool, int, float)) for value in parameters.values()):
        raise ValueError("parameters")
    body = memoryview(entry)
    outputs = []
    for form in forms:
        if type(form) is not list or len(form) != 4:
            raise ValueError("form of an output")
        tensor, position = _tensor(form, body, position)
        outputs.append(tensor)
    if position != len(entry):
        raise ValueError("bytes that belong to no output")
    return InferResponse(model, version, outputs, parameters=parameters)


def _tensor(form: list[Any], body: memoryview, position: int) -> tuple[Tensor, int]:
    name, datatype, shape, size = form
    if type(name) is not str or type(datatype) is not str or datatype not in DATATYPES or type(size) is not int:
        raise ValueError("form of an output")
    if type(shape) is not list or len(shape) > MAX_RANK:
        raise ValueError("shape of an output")
    for dimension in shape:
        if type(dimension) is not int or not 0 <= dimension <= _MAX_DIMENSION:
            raise ValueError("shape of an output")
    end = position + size
    if size < 0 or end > len(body):
        raise ValueError("size of an output")
    data = body[position:end]
    if datatype == BYTES:
        if size > _MAX_STRING_BYTES or len(unpack_bytes(data)) != prod(shape):
            raise ValueError("elements of an output")
    elif byte_size(datatype, shape) != size:
        raise ValueError("size of an output")
    return Tensor(name, datatype, tuple(shape), data), end
