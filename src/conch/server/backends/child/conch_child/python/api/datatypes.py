"""Convert datatypes between wire names (`FP32`), config names (`TYPE_FP32`), Triton's numbers (11) and numpy types."""

from __future__ import annotations

import struct
from typing import Any, Dict, List, Optional

import numpy as np

# Wire name → (Triton's number, numpy type). BF16 has no numpy type.
_DATATYPES = {
    "BOOL": (1, np.bool_),
    "UINT8": (2, np.uint8),
    "UINT16": (3, np.uint16),
    "UINT32": (4, np.uint32),
    "UINT64": (5, np.uint64),
    "INT8": (6, np.int8),
    "INT16": (7, np.int16),
    "INT32": (8, np.int32),
    "INT64": (9, np.int64),
    "FP16": (10, np.float16),
    "FP32": (11, np.float32),
    "FP64": (12, np.float64),
    "BYTES": (13, np.object_),
}

NUMBERS: Dict[str, int] = {name: number for name, (number, _) in _DATATYPES.items()}
NUMBERS["BF16"] = 14

DTYPES: Dict[str, Any] = {name: np.dtype(kind) for name, (_, kind) in _DATATYPES.items()}
_NAME_OF_DTYPE = {dtype: name for name, dtype in DTYPES.items()}

TRITON_STRING_TO_NUMPY: Dict[str, Any] = {"TYPE_" + name: kind for name, (_, kind) in _DATATYPES.items()}
TRITON_STRING_TO_NUMPY["TYPE_BOOL"] = bool
TRITON_STRING_TO_NUMPY["TYPE_STRING"] = TRITON_STRING_TO_NUMPY.pop("TYPE_BYTES")

_LENGTH = struct.Struct("<I")


def name_of(dtype: Any) -> Optional[str]:
    """Return the wire name of a numpy dtype of either byte order, None if it has none. Text and bytes are BYTES."""
    name = _NAME_OF_DTYPE.get(dtype)
    if name is None and dtype.kind in "OSU":
        return "BYTES"
    return name or _NAME_OF_DTYPE.get(dtype.newbyteorder("="))


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return the numpy type for a datatype of a configuration, such as `TYPE_FP32`. Raises KeyError if it has none."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """Return the numpy type for Triton's number of a datatype, None if it has none."""
    for number, kind in _DATATYPES.values():
        if number == data_type:
            return kind
    return None


def numpy_to_triton_type(data_type: Any) -> Optional[int]:
    """Return Triton's number for a numpy type or dtype, None if it has none."""
    name = name_of(np.dtype(data_type))
    return None if name is None else NUMBERS[name]


def pack_bytes(array: Any) -> bytes:
    """Join the elements of an array, each preceded by its length: `bytes` as they are, everything else as text."""
    parts: List[bytes] = []
    for element in array.ravel().tolist():
        raw = bytes(element) if isinstance(element, (bytes, bytearray, memoryview)) else str(element).encode()
        parts.append(_LENGTH.pack(len(raw)))
        parts.append(raw)
    return b"".join(parts)


def unpack_bytes(data: Any) -> Any:
    """Split what `pack_bytes` joined into a flat object array of `bytes`. Raises ValueError if data is incomplete."""
    view = memoryview(data)
    elements: List[bytes] = []
    position, end = 0, len(view)
    while position < end:
        if position + 4 > end:
            raise ValueError(
                "incomplete string length indicator: 4 bytes expected, {} available".format(end - position)
            )
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if position + length > end:
            raise ValueError("incomplete string data: {} bytes expected, {} available".format(length, end - position))
        elements.append(view[position : position + length].tobytes())
        position += length
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def serialize_byte_tensor(input_tensor: Any) -> Optional[bytes]:
    """Join the elements of an array of bytes or text, each preceded by its length; None for an empty array."""
    if input_tensor.size == 0 or input_tensor.dtype.kind not in "OS":
        return None
    return pack_bytes(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: Any) -> Any:
    """Split what `serialize_byte_tensor` joined; return a flat object array of `bytes`."""
    return unpack_bytes(encoded_tensor)
