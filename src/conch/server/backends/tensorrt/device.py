"""Stream, buffers and copies of one CUDA device. All of it belongs to one thread."""

from typing import Any

import numpy as np
import numpy.typing as npt

from conch.base.errors import BackendError, ModelLoadError
from conch.base.extras import install_command

try:
    from conch.server.backends.cuda_runtime import call, cudart, device_count
except ModuleNotFoundError as error:
    raise ModelLoadError(
        f"backend 'tensorrt' needs the package 'cuda-bindings': {install_command('tensorrt')}"
    ) from error


def check_device(number: int) -> None:
    """Raise ModelLoadError unless there is a GPU with that number."""
    try:
        count = device_count()
    except BackendError as error:
        raise ModelLoadError(f"TensorRT needs an NVIDIA GPU: {error.message}") from None
    if number >= count:
        raise ModelLoadError(f"there is no GPU {number}: this machine has GPUs 0 to {count - 1}")


class Device:
    """A device used by one thread: a stream, and a buffer for each tensor, which grows as needed."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._stream: Any = None
        self._buffers: dict[str, tuple[int, int]] = {}  # name → address, size

    @property
    def stream(self) -> int:
        """The handle of the stream, for TensorRT."""
        return int(self._stream)

    def open(self) -> None:
        """Make the device current in this thread, and create a stream. Raises BackendError."""
        call(cudart.cudaSetDevice(self._number))
        self._stream = call(cudart.cudaStreamCreateWithFlags(cudart.cudaStreamNonBlocking))

    def buffer(self, name: str, size: int) -> int:
        """Return the address of a tensor's buffer, which has at least `size` bytes. Raises BackendError."""
        address, capacity = self._buffers.get(name, (0, 0))
        if capacity < size or not address:
            self._free(name)
            # A tensor without elements needs an address, too.
            capacity = max(size, 1)
            address = int(call(cudart.cudaMalloc(capacity)))
            self._buffers[name] = (address, capacity)
        return address

    def upload(self, name: str, array: npt.NDArray[Any]) -> int:
        """Begin to copy an array into its tensor's buffer; return the address. The array must outlive `wait`."""
        address = self.buffer(name, array.nbytes)
        kind = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
        call(cudart.cudaMemcpyAsync(address, array.ctypes.data, array.nbytes, kind, self._stream))
        return address

    def download(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Begin to copy a tensor's buffer into an array, which is complete after `wait`."""
        array = np.empty(shape, dtype)
        kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
        call(cudart.cudaMemcpyAsync(array.ctypes.data, self._buffers[name][0], array.nbytes, kind, self._stream))
        return array

    def wait(self) -> None:
        """Wait for all operations of the stream. Raises BackendError if one has failed."""
        call(cudart.cudaStreamSynchronize(self._stream))

    def close(self) -> None:
        """Free the buffers and the stream."""
        for name in list(self._buffers):
            self._free(name)
        if self._stream is not None:
            call(cudart.cudaStreamDestroy(self._stream))
            self._stream = None

    def _free(self, name: str) -> None:
        address, _ = self._buffers.pop(name, (0, 0))
        if address:
            call(cudart.cudaFree(address))
