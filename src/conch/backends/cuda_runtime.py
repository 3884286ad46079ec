"""CUDA by NVIDIA's own bindings: what more than one part of the server needs of it, and the only import of them.

Raises ModuleNotFoundError where the package `cuda-bindings` is not installed.
"""

import ctypes
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver  # type: ignore[import-not-found, import-untyped, unused-ignore]
from cuda.bindings import runtime as cudart  # type: ignore[import-not-found, import-untyped, unused-ignore]

from conch.errors import BackendError

__all__ = ["HANDLE_SIZE", "IpcMemory", "call", "cudart", "device_count", "reason"]

# Bytes of a `cudaIpcMemHandle_t`.
HANDLE_SIZE: Final = 64


def device_count() -> int:
    """Return how many GPUs there are. Raises BackendError with the reason if CUDA finds none."""
    status, count = cudart.cudaGetDeviceCount()
    if status != cudart.cudaError_t.cudaSuccess or count == 0:
        raise BackendError(f"CUDA finds no GPU here: {reason(status)}")
    return int(count)


def call(result: tuple[Any, ...]) -> Any:
    """Return what a function of CUDA returns beside its status. Raises BackendError unless that is success."""
    status, *values = result
    if status != cudart.cudaError_t.cudaSuccess:
        raise BackendError(f"CUDA: {reason(status)}")
    return values[0] if values else None


def reason(status: Any) -> str:
    """Return what CUDA says of a status."""
    _, text = cudart.cudaGetErrorString(status)
    return text.decode() if isinstance(text, bytes) else str(text)


class IpcMemory:
    """Memory of a GPU that another process has allocated and shares; closed when nobody has it any more."""

    def __init__(self, handle: bytes, device: int) -> None:
        """Open what a handle of `HANDLE_SIZE` bytes stands for. Raises BackendError."""
        self._device = device
        self._address = 0
        own = cudart.cudaIpcMemHandle_t()
        ctypes.memmove(own.getPtr(), handle, HANDLE_SIZE)
        call(cudart.cudaSetDevice(device))
        self._address = int(call(cudart.cudaIpcOpenMemHandle(own, cudart.cudaIpcMemLazyEnablePeerAccess)))
        status, begin, size = driver.cuMemGetAddressRange(self._address)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise BackendError(f"CUDA: {status!r} where the size of the memory was asked for")
        # In bytes, all of the allocation that lies behind the address.
        self.size = int(begin) + int(size) - self._address

    def __del__(self) -> None:
        if self._address:
            with suppress(BackendError):  # the driver is on its way out, as at the end of the process
                call(cudart.cudaSetDevice(self._device))
                call(cudart.cudaIpcCloseMemHandle(self._address))

    def read(self, target: npt.NDArray[np.uint8], offset: int) -> None:
        """Fill an array from `offset` on. Raises BackendError."""
        kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
        call(cudart.cudaSetDevice(self._device))
        call(cudart.cudaMemcpy(target.ctypes.data, self._address + offset, target.nbytes, kind))

    def write(self, source: npt.NDArray[np.uint8], offset: int) -> None:
        """Write an array to `offset`; it is there when this returns. Raises BackendError."""
        kind = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
        call(cudart.cudaSetDevice(self._device))
        call(cudart.cudaMemcpy(self._address + offset, source.ctypes.data, source.nbytes, kind))
        # A copy from ordinary memory returns when that may be used again, which is before it has arrived.
        call(cudart.cudaStreamSynchronize(0))
