# Compiled by mypyc in wheels.
"""Convert typed `InferTensorContents` to wire bytes."""

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from conch.base.errors import InvalidRequest
from conch.domain.tensor import BYTES, NUMPY_DTYPES, pack_bytes

# `InferInputTensor`, which protobuf creates at run time.
InputMessage: TypeAlias = Any


class _Field(NamedTuple):
    datatype: str  # of the field's values
    narrower: frozenset[str] = frozenset()  # other datatypes with values in this field


_FIELDS: Final = {
    "bool_contents": _Field("BOOL"),
    "int_contents": _Field("INT32", frozenset({"INT8", "INT16"})),
    "int64_contents": _Field("INT64"),
    "uint_contents": _Field("UINT32", frozenset({"UINT8", "UINT16"})),
    "uint64_contents": _Field("UINT64"),
    "fp32_contents": _Field("FP32"),
    "fp64_contents": _Field("FP64"),
    "bytes_contents": _Field(BYTES),
}


def pack_contents(entry: InputMessage, model_name: str) -> bytes:
    """Return the wire bytes of an input's `contents`, empty without a field.

    Raises InvalidRequest for a field of another datatype, for more than one field, and for values that are out of
    range.
    """
    packed: bytes | None = None
    where = f"unexpected explicit tensor data for input tensor '{entry.name}' for model '{model_name}'"
    for descriptor, values in entry.contents.ListFields():
        source = _FIELDS[descriptor.name]
        if packed is not None:
            raise InvalidRequest(f"{where}, binary data was already supplied.")
        if entry.datatype == source.datatype:
            packed = _pack(values, source.datatype)
        elif entry.datatype in source.narrower:
            packed = _narrow(entry, values, source.datatype)
        else:
            raise InvalidRequest(f"{where} of type '{source.datatype}', expected datatype '{entry.datatype}'")
    return packed or b""


def _pack(values: Any, datatype: str) -> bytes:
    if datatype == BYTES:
        return pack_bytes(values)
    return np.fromiter(values, NUMPY_DTYPES[datatype], count=len(values)).tobytes()


def _narrow(entry: InputMessage, values: Any, datatype: str) -> bytes:
    wide = np.fromiter(values, NUMPY_DTYPES[datatype], count=len(values))
    narrow = wide.astype(NUMPY_DTYPES[entry.datatype])
    overflows = wide != narrow
    if overflows.any():
        raise InvalidRequest(
            f"value {wide[overflows][0]} in the contents of input tensor '{entry.name}' does not fit {entry.datatype}"
        )
    return narrow.tobytes()
