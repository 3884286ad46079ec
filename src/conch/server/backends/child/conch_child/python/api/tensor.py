"""`pb_utils.Tensor`: one named input or output."""

from __future__ import annotations

import sys
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from ..kept_data import KeptData
from . import dlpack
from .arguments import CallSignature
from .datatypes import DTYPES, NUMBERS, name_of, pack_bytes, unpack_bytes
from .errors import TritonModelException

_SIGNATURE = CallSignature("__init__", "c_python_backend_utils.Tensor(arg0: str, arg1: numpy.ndarray)")


class Tensor:
    """A name and an array.

    `as_numpy` of an input is a view of memory that is shared with the server or belongs to the request. It may be
    written to and kept. Outputs are copied from their array when the response is sent. A tensor that was received is
    not copied when it is an input of a call (BLS), as in Triton: it may be written to again after the call. The server
    keeps a large output of a call until the model reads it, or passes it on.
    """

    __slots__ = ("_array", "_data", "_datatype", "_name", "_shape")

    def __init__(self, name: str, numpy_array: Any) -> None:
        if not isinstance(numpy_array, np.ndarray):  # before the name, as in Triton
            raise _SIGNATURE.mismatch("numpy_array", numpy_array)
        name = _named(name)
        datatype = name_of(numpy_array.dtype)
        if datatype is None:
            raise TritonModelException(
                "NumPy dtype is not supported. Tensor '{}' is {}".format(name, numpy_array.dtype)
            )
        self._name = name
        self._datatype = datatype
        self._shape: Tuple[int, ...] = numpy_array.shape
        self._array: Any = numpy_array
        self._data: Any = None

    @classmethod
    def from_wire(cls, name: str, datatype: str, shape: Sequence[int], data: Any) -> Tensor:
        """Create a tensor from its wire format, without copying or checking the bytes."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = tuple(shape)
        tensor._array = None
        tensor._data = data
        return tensor

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """Create a tensor from an object with `__dlpack__`, such as a torch tensor, or from a capsule.

        It must be contiguous and C-ordered. bfloat16 becomes BF16. GPU tensors are copied to host memory by torch,
        which must have been imported. Raises TritonModelException.
        """
        name = _named(name)
        if isinstance(tensor, Tensor) and tensor.received() is not None and tensor._datatype != "BYTES":
            return Tensor.from_wire(name, tensor._datatype, tensor._shape, tensor._data)
        capsule = _capsule_of(tensor)
        if dlpack.is_bfloat16(capsule):
            shape, data = dlpack.read_bfloat16(capsule)
            return Tensor.from_wire(name, "BF16", shape, bytearray(data))
        array = np.from_dlpack(dlpack.CapsuleOwner(capsule))
        if not array.flags.c_contiguous:
            raise TritonModelException(dlpack.NOT_CONTIGUOUS)
        return Tensor(name, array)

    def __repr__(self) -> str:
        return "Tensor({!r}, {}{})".format(self._name, self._datatype, list(self._shape))

    def name(self) -> str:
        """Return the name."""
        return self._name

    def triton_dtype(self) -> int:
        """Return Triton's number of the datatype; see `triton_to_numpy_type`."""
        return NUMBERS[self._datatype]

    def shape(self) -> List[int]:
        """Return the shape, batch dimension included."""
        return list(self._shape)

    def is_cpu(self) -> bool:
        """Return True: tensors are always in host memory."""
        return True

    def as_numpy(self) -> Any:
        """Return the array; elements of BYTES are `bytes`. Raises TritonModelException for BF16."""
        array = self._array
        if array is None:
            array = self._array = self._read()
        return array

    def to_dlpack(self) -> Any:
        """Return a DLPack capsule that shares the memory. Raises TritonModelException for BYTES."""
        return self.__dlpack__()

    def __dlpack__(self, stream: Any = None, **options: Any) -> Any:  # the memory of the host needs no stream
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        if self._datatype == "BF16":
            return dlpack.make_bfloat16(self._shape, self._read_bytes())
        array = self.as_numpy()
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        return array.__dlpack__(**options)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return dlpack.CPU, 0

    def received(self) -> Any:
        """Return the bytes of a tensor that is in shared memory, as an array, or that the server keeps; else None."""
        data = self._data
        if type(data) is KeptData:
            return data if data.array is None else data.array
        return data if isinstance(data, np.ndarray) else None

    def wire(self) -> Tuple[str, str, Tuple[int, ...], Any, int]:
        """Return name, datatype, shape, the bytes in wire format (a buffer or an array) and their number."""
        data = self._data
        if data is None:
            array = self._array
            if self._datatype == "BYTES":
                data = pack_bytes(array)
            elif array.dtype == DTYPES[self._datatype]:
                return self._name, self._datatype, self._shape, array, array.nbytes
            else:
                data = array.astype(DTYPES[self._datatype])
                return self._name, self._datatype, self._shape, data, data.nbytes
        elif type(data) is KeptData and data.array is not None:
            data = data.array
        return self._name, self._datatype, self._shape, data, len(data)

    def _read_bytes(self) -> Any:
        data = self._data
        if type(data) is KeptData:
            data = self._data = data.read()
        return data

    def _read(self) -> Any:
        data = self._data
        if type(data) is KeptData:
            data = self._read_bytes()
        datatype = self._datatype
        if datatype == "BYTES":
            return unpack_bytes(data).reshape(self._shape)
        dtype = DTYPES.get(datatype)
        if dtype is None:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        if not len(data):
            return np.empty(self._shape, dtype)
        return np.frombuffer(data, dtype).reshape(self._shape)


def named(tensors: Sequence[Tensor], name: str) -> Optional[Tensor]:
    """Return the first tensor of that name, None if it is missing."""
    for tensor in tensors:
        if tensor._name == name:
            return tensor
    return None


def _named(name: Any) -> str:
    text = name if type(name) is str else _SIGNATURE.text("name", name)
    if not text:
        raise TritonModelException("Tensor name cannot be an empty string.")
    return text


def _capsule_of(tensor: Any) -> Any:
    if not hasattr(tensor, "__dlpack__"):
        return tensor
    if tensor.__dlpack_device__()[0] not in (dlpack.CPU, dlpack.CUDA_HOST):
        torch = sys.modules.get("torch")
        if torch is None:
            raise TritonModelException("a GPU tensor must be copied to the host by torch: import torch in the model")
        tensor = torch.from_dlpack(tensor).cpu()
    return tensor.__dlpack__()
