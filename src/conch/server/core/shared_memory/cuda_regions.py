"""CUDA shared memory: regions of GPU memory that clients share by a CUDA IPC handle."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from conch.base.errors import BackendError, InvalidRequest, Unavailable, Unsupported
from conch.domain.tensor import Buffer

# Bytes of a `cudaIpcMemHandle_t`.
_HANDLE_SIZE: Final = 64


class DeviceMemory(Protocol):
    """GPU memory opened from an IPC handle. Methods raise BackendError."""

    @property
    def size(self) -> int:
        """Its size in bytes."""

    def read(self, target: npt.NDArray[np.uint8], offset: int) -> None:
        """Fill an array from `offset` on."""

    def write(self, source: npt.NDArray[np.uint8], offset: int) -> None:
        """Write an array to `offset`."""


# Opens the memory of a handle, on the device with that number. Raises Unsupported, BackendError.
OpenMemory: TypeAlias = Callable[[bytes, int], DeviceMemory]


def open_memory(handle: bytes, device: int) -> DeviceMemory:
    """Open memory with CUDA, which is initialized here. Raises Unsupported without CUDA, BackendError."""
    try:
        cuda = import_module("conch.server.backends.cuda_runtime")
    except ModuleNotFoundError:
        raise Unsupported("the package 'cuda-bindings' is not installed") from None
    try:
        count = cuda.device_count()
    except BackendError as error:
        raise Unsupported(error.message) from None
    if len(handle) != _HANDLE_SIZE:
        raise BackendError(
            f"'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t, which has {_HANDLE_SIZE} bytes; "
            f"got {len(handle)}"
        )
    if not 0 <= device < count:
        raise BackendError(f"there is no GPU {device}: this machine has {count}, counted from 0")
    memory: DeviceMemory = cuda.IpcMemory(handle, device)
    return memory


class CudaRegion:
    """A region of GPU memory, open until the last request that uses it has ended."""

    kind = "cuda"
    __slots__ = ("_memory", "byte_size", "device", "name")

    def __init__(self, name: str, handle: bytes, device: int, byte_size: int, open_: OpenMemory) -> None:
        """Open the memory. Raises InvalidRequest without GPUs, or if it cannot be opened."""
        self.name = name
        self.device = device
        self.byte_size = byte_size
        try:
            self._memory = open_(handle, device)
        except Unsupported as error:
            raise InvalidRequest(
                f"failed to register shared memory region: invalid args: CUDA region '{name}', GPUs not supported: "
                f"{error.message}; register system shared memory"
            ) from None
        except BackendError as error:
            raise InvalidRequest(
                f"failed to register shared memory region: invalid args: CUDA region '{name}': {error.message}"
            ) from None
        if not 0 < byte_size <= self._memory.size:
            raise InvalidRequest(
                f"failed to register shared memory region '{name}': invalid args: its memory has "
                f"{self._memory.size} bytes, the region is to have {byte_size}"
            )

    @property
    def row(self) -> dict[str, Any]:
        """Its row in the status of regions, by Triton's names."""
        return {"name": self.name, "device_id": self.device, "byte_size": self.byte_size}

    def location(self, _offset: int, _size: int) -> None:
        """Return None: model processes do not write to GPU regions."""

    def read_into(self, target: npt.NDArray[np.uint8], offset: int) -> None:
        """Fill `target` from `offset` of the region on. Raises Unavailable."""
        try:
            if len(target):
                self._memory.read(target, offset)
        except BackendError as error:
            raise self._unusable(error) from None

    def write(self, data: Buffer, offset: int) -> None:
        """Write to `offset` of the region. Raises Unavailable."""
        source = np.frombuffer(data, np.uint8)
        try:
            if len(source):
                self._memory.write(source, offset)
        except BackendError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: BackendError) -> Unavailable:
        return Unavailable(f"shared memory region '{self.name}' of GPU {self.device} cannot be used: {error.message}")
