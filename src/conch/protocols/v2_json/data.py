# Compiled by mypyc in wheels.
"""Convert the `data` arrays of inputs and outputs in JSON to and from wire bytes.

Nesting is ignored: [[1,2],[3,4]] and [1,2,3,4] are the same data. Types and ranges are checked without a loop in
Python; only an error searches for the invalid element.
"""

import struct
from itertools import chain
from typing import Any, Final

import numpy as np
import orjson

from conch.base.errors import InvalidRequest
from conch.domain.tensor import BYTES, ITEM_SIZES, NUMPY_DTYPES, Tensor, pack_bytes, unpack_bytes
from conch.protocols.json_document import array, shown

MAX_DEPTH: Final = 100
_MAX_INT64: Final = 2**63 - 1

# Datatype → code of `struct`, for the datatypes of JSON numbers and booleans.
_CODES: Final = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP32": "f",
    "FP64": "d",
}
_INTEGER: Final[frozenset[type]] = frozenset({int})
_NUMBER: Final[frozenset[type]] = frozenset({int, float})
_BOOLEAN: Final[frozenset[type]] = frozenset({bool})
_STRING: Final[frozenset[type]] = frozenset({str})


def pack(name: str, datatype: str, data: Any, count: int) -> bytes:
    """Convert an input's `data` to the wire bytes of `count` elements.

    Raises InvalidRequest if `data` is not an array, has another number of elements, or an element of another type:
    integers must not have a fraction and must be in range, and booleans are not numbers. FP32 overflows to infinity.
    """
    flat = array(data, "data")
    # All elements at once: a loop in Python would take more time than the parser.
    types = set(map(type, flat))
    if list in types:
        flat = _flatten(flat, name)
        types = set(map(type, flat))
    allowed = _types(datatype)
    # The validation of the tensor checks the number of strings, as in Triton.
    if len(flat) != count and datatype != BYTES:
        within = flat[:count]
        if not allowed.issuperset(map(type, within)):
            raise _wrong_element(name, datatype, within, allowed)
        raise InvalidRequest(
            "Unable to parse 'data': Shape does not match true shape of 'data' field; "
            f"{_mismatch(name, datatype, count)}, 'data' has {len(flat)}"
        )
    if not types <= allowed:
        raise _wrong_element(name, datatype, flat, allowed)
    if datatype == BYTES:
        return _pack_strings(name, flat)
    try:
        return struct.pack(f"<{count}{_CODES[datatype]}", *flat)
    except OverflowError:
        return _pack_with_overflow(datatype, flat)
    except struct.error:
        raise _out_of_range(name, datatype, flat) from None


def not_in_json(name: str, datatype: str) -> InvalidRequest:
    """Return the error for an input whose datatype has no JSON form."""
    return InvalidRequest(
        f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input {name}"
    )


def encode(tensor: Tensor) -> Any:
    """Return an output's elements as a value that orjson writes as a flat array, with OPT_SERIALIZE_NUMPY.

    NaN and infinities become null: see `encode_exactly`. Raises InvalidRequest for FP16 and BF16, which have no JSON
    form, and ValueError for incomplete elements.
    """
    if tensor.datatype == BYTES:
        try:
            return [element.decode() for element in unpack_bytes(tensor.data)]
        except UnicodeDecodeError:
            return encode_exactly(tensor)
    if tensor.datatype not in _CODES:
        raise InvalidRequest(
            f"sending {tensor.datatype} data via JSON is not supported. "
            f"Please use the binary data format for output {tensor.name}"
        )
    return np.frombuffer(tensor.data, NUMPY_DTYPES[tensor.datatype])


def encode_exactly(tensor: Tensor) -> orjson.Fragment:
    """Return the result of `write_exactly` as a value for orjson."""
    return orjson.Fragment(write_exactly(tensor))


def write_exactly(tensor: Tensor) -> bytes:
    """Write an output's elements in Triton's extended JSON.

    NaN and infinities become the literals `NaN`, `Infinity` and `-Infinity`, and bytes that are not UTF-8 are written
    unchanged. The datatype must not be FP16 or BF16.
    """
    if tensor.datatype == BYTES:
        elements = [_quoted(element) for element in unpack_bytes(tensor.data)]
    else:
        values = np.frombuffer(tensor.data, NUMPY_DTYPES[tensor.datatype])
        elements = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        if values.dtype.kind == "f":
            for index in np.flatnonzero(~np.isfinite(values)).tolist():
                elements[index] = _LITERALS[str(values[index])]
    return b"[" + b",".join(elements) + b"]"


_LITERALS: Final = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}


def _quoted(element: bytes) -> bytes:
    try:
        return orjson.dumps(element.decode())
    except UnicodeDecodeError:
        # Escaped characters are ASCII, which is never part of another UTF-8 character: replacing bytes is safe.
        for plain, escaped in _ESCAPES:
            if plain in element:
                element = element.replace(plain, escaped)
        return b'"' + element + b'"'


def _escapes() -> list[tuple[bytes, bytes]]:
    """Return pairs of characters and their JSON escapes. The backslash is first, because escapes contain it."""
    characters = ["\\", '"', *map(chr, range(0x20))]
    return [(character.encode(), orjson.dumps(character)[1:-1]) for character in characters]


_ESCAPES: Final = _escapes()


def _types(datatype: str) -> frozenset[type]:
    if datatype in ("FP32", "FP64"):
        return _NUMBER
    if datatype == BYTES:
        return _STRING
    return _BOOLEAN if datatype == "BOOL" else _INTEGER


def _flatten(data: list[Any], name: str) -> list[Any]:
    """Remove all nesting, in a time linear in the size of the text."""
    for depth in range(MAX_DEPTH):
        types = set(map(type, data))
        if list not in types:
            return data
        if len(types) > 1:
            flat: list[Any] = []
            _gather(data, flat, depth, name)
            return flat
        data = list(chain.from_iterable(data))
    raise _too_deep(name)


def _gather(data: list[Any], flat: list[Any], depth: int, name: str) -> None:
    """Append the leaves of arrays that contain both values and arrays."""
    if depth >= MAX_DEPTH:
        raise _too_deep(name)
    for element in data:
        if type(element) is list:
            _gather(element, flat, depth + 1, name)
        else:
            flat.append(element)


def _mismatch(name: str, datatype: str, count: int) -> str:
    """Describe a number of elements that `data` does not have; newer releases of Triton match on the overflows."""
    if count > _MAX_INT64:
        return f"the shape of input '{name}' causes total element count to exceed maximum size of {_MAX_INT64}"
    if count * ITEM_SIZES[datatype] > _MAX_INT64:
        return f"byte size overflow for input '{name}': its shape needs {count} elements"
    return f"the shape of input '{name}' needs {count} elements"


def _too_deep(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH}) in input '{name}'"
    )


def _pack_strings(name: str, strings: list[str]) -> bytes:
    try:
        return pack_bytes([element.encode("utf-8", "surrogateescape") for element in strings])
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"Unable to parse 'data': an element of input '{name}' has an unpaired surrogate: {shown(error.object)}"
        ) from None


def _pack_with_overflow(datatype: str, numbers: list[int | float]) -> bytes:
    """Round to infinity beyond the largest value, as IEEE 754 does; `struct` refuses such values."""
    with np.errstate(over="ignore"):
        return np.array(numbers, np.float64).astype(NUMPY_DTYPES[datatype]).tobytes()


def _json_type(datatype: str) -> str:
    """Return Triton's name of the JSON type of a datatype."""
    if datatype in ("FP32", "FP64"):
        return "number"
    if datatype == BYTES:
        return "string"
    if datatype == "BOOL":
        return "boolean"
    return "unsigned-integer" if datatype.startswith("U") else "signed-integer"


def _wrong_element(name: str, datatype: str, flat: list[Any], allowed: frozenset[type]) -> InvalidRequest:
    index = next(index for index, element in enumerate(flat) if type(element) not in allowed)
    expected = _json_type(datatype)
    seen_as = "double" if expected == "number" else expected
    what = "JSON bytes array" if datatype == BYTES else "'data'"
    return InvalidRequest(
        f"Unable to parse {what}: attempt to access JSON non-{expected} as {seen_as}; "
        f"element {index} of input '{name}' ({datatype}) is {shown(flat[index])}"
    )


def _out_of_range(name: str, datatype: str, flat: list[int]) -> InvalidRequest:
    limits = np.iinfo(NUMPY_DTYPES[datatype])
    lowest, highest = int(limits.min), int(limits.max)
    index = next(index for index, element in enumerate(flat) if not lowest <= element <= highest)
    expected = _json_type(datatype)
    is_other_type = flat[index] < 0 if lowest == 0 else flat[index] > _MAX_INT64
    cause = f"attempt to access JSON non-{expected} as {expected}; " if is_other_type else ""
    return InvalidRequest(
        f"Unable to parse 'data': {cause}element {index} of input '{name}' is {shown(flat[index])}, "
        f"which does not fit {datatype} ({lowest} to {highest})"
    )
