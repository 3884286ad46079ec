# Compiled by mypyc in wheels.
"""Tensors: a name, a datatype, a shape and bytes in the wire format of KServe v2.

The bytes are little-endian, C-ordered and without gaps; each BYTES element has its length before it, as a little-endian
uint32 (Triton's binary tensor data extension). Clients and child processes use this format too, and requests are
batched by joining bytes, so numpy arrays are made only for computations.
"""

import struct
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Buffer: TypeAlias = bytes | bytearray | memoryview

BYTES: Final = "BYTES"

# Wire datatype → bytes per element. BYTES elements have no fixed size.
ITEM_SIZES: Final[dict[str, int]] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
# Of a client's shape: more than any framework supports. The time for the product of a shape is quadratic in its length.
MAX_RANK: Final = 64
DATATYPES: Final[frozenset[str]] = frozenset(ITEM_SIZES) | {BYTES}

# Wire datatype → numpy dtype, where numpy has one (it has no bfloat16). BYTES are arrays of `bytes` objects.
NUMPY_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    BYTES: np.dtype(np.object_),
}
_DATATYPE_OF_DTYPE: Final[dict[np.dtype[Any], str]] = {dtype: name for name, dtype in NUMPY_DTYPES.items()}

_LENGTH: Final = struct.Struct("<I")


class Source(Protocol):
    """Shared memory with the bytes of a tensor, to be read on the event loop's thread only.

    A client may change the bytes at any time, or remove them.
    """

    @property
    def size(self) -> int:
        """Size in bytes."""

    def read(self) -> Buffer:
        """Return a copy of the bytes. Raises ConchError if they are gone."""

    def room(self) -> npt.NDArray[np.uint8]:
        """Return new memory of this size. Raises ConchError if there is none."""

    def read_into(self, target: npt.NDArray[np.uint8], offset: int = 0) -> None:
        """Fill `target` with the bytes from `offset` on. Raises ConchError if they are gone."""


class Destination(Source, Protocol):
    """A client's shared memory for an output."""

    @property
    def location(self) -> tuple[object, ...] | None:
        """Its address for other processes (see `conch_child.python.messages`); None if only this one can write."""

    def first(self, size: int) -> Source:
        """Return its first `size` bytes as a source."""

    def begins_with(self, source: Source) -> bool:
        """Whether the source is its first bytes."""

    def write(self, data: Buffer, offset: int = 0) -> None:
        """Write bytes from `offset` on. Raises ConchError if the memory is gone."""


class Tensor:
    """One named tensor.

    Its data are a contiguous buffer of the wire bytes, which is shared and must not be written to. A tensor with a
    `source` fetches them on the first access to `data`.
    """

    __slots__ = ("_data", "_nbytes", "datatype", "name", "shape", "source")

    def __init__(
        self, name: str, datatype: str, shape: Sequence[int], data: Buffer = b"", source: Source | None = None
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = tuple(shape)
        self.source = source
        self._data = data
        self._nbytes = -1  # unknown until it is asked for

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype}{list(self.shape)}, {self.nbytes} B)"

    @property
    def data(self) -> Buffer:
        """The wire bytes. Raises ConchError if the source is gone."""
        if self.source is not None:
            self.fetch()
        return self._data

    def fetch(self) -> None:
        """Copy the bytes from the source, and release it. Raises ConchError if the source is gone."""
        if self.source is not None:
            self.replace_source(self.source.read())

    def replace_source(self, data: Buffer) -> None:
        """Set the bytes that were copied from the source, and release it."""
        self._data = data
        self._nbytes = -1
        self.source = None

    @property
    def nbytes(self) -> int:
        """Size of the wire bytes."""
        if self.source is not None:
            return self.source.size
        if self._nbytes < 0:
            data = self._data
            self._nbytes = len(data) if type(data) is bytes else memoryview(data).nbytes
        return self._nbytes

    def renamed(self, name: str) -> "Tensor":
        """Return the tensor with another name; the data are shared."""
        return self if name == self.name else Tensor(name, self.datatype, self.shape, self._data, self.source)

    def reshaped(self, shape: Sequence[int]) -> "Tensor":
        """Return the same elements in another shape; the data are shared."""
        return Tensor(self.name, self.datatype, shape, self._data, self.source)

    @classmethod
    def from_numpy(cls, name: str, array: npt.NDArray[Any], datatype: str | None = None) -> "Tensor":
        """Wrap an array; contiguous fixed-size data is shared, the rest is packed.

        Raises ValueError for a dtype that has no wire datatype.
        """
        kind = datatype or datatype_of(array.dtype)
        if kind == BYTES:
            return cls(name, kind, array.shape, pack_bytes(array.ravel()))
        contiguous = np.ascontiguousarray(array)
        # As unsigned bytes: the buffer formats of float16 and bool arrays are not accepted everywhere.
        return cls(name, kind, array.shape, contiguous.reshape(-1).view(np.uint8).data)

    def to_numpy(self) -> npt.NDArray[Any]:
        """Return the tensor as an array: a read-only view for fixed-size types, an object array of `bytes` for BYTES.

        Raises ValueError if the bytes do not fill the shape, or for BF16, which numpy cannot express.
        """
        if self.datatype == BYTES:
            array = np.empty(prod(self.shape), dtype=np.object_)
            array[:] = unpack_bytes(self.data)
            return array.reshape(self.shape)
        dtype = NUMPY_DTYPES.get(self.datatype)
        if dtype is None:
            raise ValueError(f"tensor '{self.name}' is {self.datatype}, which numpy cannot express")
        return np.frombuffer(self.data, dtype=dtype).reshape(self.shape)


def datatype_of(dtype: np.dtype[Any]) -> str:
    """Return the wire datatype of a numpy dtype; strings of any kind are BYTES. Raises ValueError if there is none."""
    if dtype.kind in "OSU":
        return BYTES
    try:
        return _DATATYPE_OF_DTYPE[dtype.newbyteorder("<")]
    except KeyError:
        raise ValueError(f"numpy dtype '{dtype}' has no datatype on the wire") from None


def byte_size(datatype: str, shape: Sequence[int]) -> int:
    """Return the size in bytes of a shape of a fixed-size datatype. Raises KeyError for BYTES."""
    return ITEM_SIZES[datatype] * prod(shape)


def pack_bytes(elements: Iterable[object]) -> bytes:
    """Join elements into the BYTES wire form. `str` is encoded as UTF-8; other objects by their `str()`."""
    parts: list[bytes] = []
    for element in elements:
        if isinstance(element, bytes):
            raw = element
        elif isinstance(element, (bytearray, memoryview)):
            raw = bytes(element)
        else:
            raw = str(element).encode()
        parts.append(_LENGTH.pack(len(raw)))
        parts.append(raw)
    return b"".join(parts)


def unpack_bytes(data: Buffer) -> list[bytes]:
    """Split the BYTES wire form into its elements. Raises ValueError if a length runs past the end."""
    view = memoryview(data).cast("B")
    elements: list[bytes] = []
    position, end = 0, len(view)
    while position < end:
        if position + 4 > end:
            raise ValueError(f"incomplete length: {end - position} of 4 bytes at offset {position}")
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if position + length > end:
            raise ValueError(f"element of {length} bytes at offset {position} has only {end - position} bytes")
        elements.append(bytes(view[position : position + length]))
        position += length
    return elements
