"""Shared functions of the CUDA runtime, through NVIDIA's bindings; the only module that imports them.

Importing it raises ModuleNotFoundError if the package `cuda-bindings` is not installed.
"""

import ctypes
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver  # type: ignore[import-not-found, import-untyped, unused-ignore]
from cuda.bindings import runtime as cudart  # type: ignore[import-not-found, import-untyped, unused-ignore]

from conch.base.errors import BackendError

__all__ = ["HANDLE_SIZE", "IpcMemory", "call", "cudart", "device_count", "reason"]

# Bytes of a `cudaIpcMemHandle_t`.
HANDLE_SIZE: Final = 64


def device_count() -> int:
    """Return the number of GPUs. Raises BackendError with the reason if CUDA finds none."""
    status, count = cudart.cudaGetDeviceCount()
    if status != cudart.cudaError_t.cudaSuccess or count == 0:
        raise BackendError(f"CUDA finds no GPU: {reason(status)}")
    return int(count)


def call(result: tuple[Any, ...]) -> Any:
    """Return the value that a CUDA function returned with its status. Raises BackendError for an error status."""
    status, *values = result
    if status != cudart.cudaError_t.cudaSuccess:
        raise BackendError(f"CUDA: {reason(status)}")
    return values[0] if values else None


def reason(status: Any) -> str:
    """Return CUDA's text for a status."""
    _, text = cudart.cudaGetErrorString(status)
    return text.decode() if isinstance(text, bytes) else str(text)


class IpcMemory:
    """GPU memory that another process has allocated and shares; closed when the last reference is dropped."""

    def __init__(self, handle: bytes, device: int) -> None:
        """Open the memory of a handle of `HANDLE_SIZE` bytes. Raises BackendError."""
        self._device = device
        self._address = 0
        native = cudart.cudaIpcMemHandle_t()
        ctypes.memmove(native.getPtr(), handle, HANDLE_SIZE)
        call(cudart.cudaSetDevice(device))
        self._address = int(call(cudart.cudaIpcOpenMemHandle(native, cudart.cudaIpcMemLazyEnablePeerAccess)))
        status, begin, size = driver.cuMemGetAddressRange(self._address)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise BackendError(f"CUDA: cannot get the size of shared memory: {status!r}")
        # In bytes, from the address to the end of the allocation.
        self.size = int(begin) + int(size) - self._address

    def __del__(self) -> None:
        if self._address:
            with suppress(BackendError):  # the driver may be unloading at the exit of the process
                call(cudart.cudaSetDevice(self._device))
                call(cudart.cudaIpcCloseMemHandle(self._address))

    def read(self, target: npt.NDArray[np.uint8], offset: int) -> None:
        """Fill an array from the memory at `offset`. Raises BackendError."""
        kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
        call(cudart.cudaSetDevice(self._device))
        call(cudart.cudaMemcpy(target.ctypes.data, self._address + offset, target.nbytes, kind))

    def write(self, source: npt.NDArray[np.uint8], offset: int) -> None:
        """Write an array to `offset`; returns when it has arrived. Raises BackendError."""
        kind = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
        call(cudart.cudaSetDevice(self._device))
        call(cudart.cudaMemcpy(self._address + offset, source.ctypes.data, source.nbytes, kind))
        # A copy from pageable memory returns when that may be reused, which is before the data has arrived.
        call(cudart.cudaStreamSynchronize(0))
