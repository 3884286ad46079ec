"""Read and create DLPack capsules of bfloat16, which numpy does not support, by ctypes.

Structures as in `dlpack.h` (https://dmlc.github.io/dlpack/latest/c_api.html), the unversioned `DLManagedTensor`.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Tuple

import numpy as np

from .errors import TritonModelException

CPU = 1
CUDA_HOST = 3

NOT_CONTIGUOUS = (
    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
)
_BFLOAT = 4

_UNUSED, _USED = b"dltensor", b"used_dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


# PYFUNCTYPE, as these functions and the two callbacks need the GIL.
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
# In its destructor a capsule has no references left, so it must not be passed as a Python object.
_is_valid_raw = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_get_pointer_raw = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

# Memory of exported capsules by address, until their consumer calls the deleter.
_exported: Dict[int, Tuple[Any, ...]] = {}


def _delete(address: int) -> None:
    _exported.pop(address, None)


def _destroy(capsule: int) -> None:
    if _is_valid_raw(capsule, _UNUSED):
        _exported.pop(_get_pointer_raw(capsule, _UNUSED), None)


_delete_pointer = _Deleter(_delete)
_destroy_pointer = _Deleter(_destroy)


class CapsuleOwner:
    """Wraps a capsule for `numpy.from_dlpack`."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> Tuple[int, int]:
        tensor = _look_into(self._capsule).tensor
        return tensor.device_type, tensor.device_id


def is_bfloat16(capsule: Any) -> bool:
    """Return whether a capsule's tensor is bfloat16. Raises TritonModelException for anything but an unused capsule."""
    tensor = _look_into(capsule).tensor
    return bool(tensor.code == _BFLOAT and tensor.bits == 16 and tensor.lanes == 1)


def read_bfloat16(capsule: Any) -> Tuple[Tuple[int, ...], bytes]:
    """Return shape and bytes of the bfloat16 tensor in a capsule, and consume the capsule.

    Raises TritonModelException unless the tensor is contiguous, C-ordered and in host memory.
    """
    managed = _look_into(capsule)
    tensor = managed.tensor
    if tensor.device_type not in (CPU, CUDA_HOST):
        raise TritonModelException("a bfloat16 tensor must be in host memory")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    step = 1
    for axis in range(tensor.ndim - 1, -1, -1):
        if tensor.strides and shape[axis] > 1 and tensor.strides[axis] != step:
            raise TritonModelException(NOT_CONTIGUOUS)
        step *= shape[axis]
    data = ctypes.string_at(tensor.data + tensor.byte_offset, step * 2) if step else b""
    _set_name(capsule, _USED)
    if managed.deleter:
        _Deleter(managed.deleter)(ctypes.addressof(managed))
    return shape, data


def make_bfloat16(shape: Tuple[int, ...], data: Any) -> Any:
    """Return a capsule with a bfloat16 tensor whose bytes are `data`, a writable buffer or an array; not copied."""
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    managed = _Managed()
    managed.tensor.data = array.ctypes.data
    managed.tensor.device_type = CPU
    managed.tensor.ndim = len(shape)
    managed.tensor.code, managed.tensor.bits, managed.tensor.lanes = _BFLOAT, 16, 1
    managed.tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = ctypes.cast(_delete_pointer, ctypes.c_void_p)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, sizes, array)
    return _new(address, _UNUSED, ctypes.cast(_destroy_pointer, ctypes.c_void_p))


def _look_into(capsule: Any) -> Any:
    try:
        address = _get_pointer(capsule, _UNUSED)
    except (ValueError, ctypes.ArgumentError):
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule that has not been used, or have "
            "`__dlpack__` and `__dlpack_device__` attributes"
        ) from None
    return _Managed.from_address(address)
