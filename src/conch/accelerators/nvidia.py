"""List GPUs with NVML. The only module that imports NVIDIA's bindings.

`python -m conch.accelerators.nvidia` prints the installed GPUs as JSON: `discovery` runs it as a separate process, so
that a driver that hangs or crashes affects only that process.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import pynvml

from conch.accelerators.gpu import InstalledGpu

# NVML's errors on a machine without a GPU or its driver; other errors are faults of the driver.
NO_DRIVER = (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded, pynvml.NVMLError_NoPermission)


class NvmlFault(Exception):
    """NVML is installed and fails. The message is NVML's."""


def installed_gpus() -> list[InstalledGpu]:
    """Return the GPUs that NVML lists, none without a driver. Raises NvmlFault."""
    try:
        with _nvml():
            return [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except NO_DRIVER:
        return []
    except pynvml.NVMLError as error:
        raise NvmlFault(str(error).rstrip(".")) from error


@contextmanager
def _nvml() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(index: int) -> InstalledGpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    enabled = _mig_enabled(handle)
    return InstalledGpu(
        index,
        pynvml.nvmlDeviceGetUUID(handle),
        pynvml.nvmlDeviceGetName(handle),
        int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        enabled,
        tuple(_slices(handle)) if enabled else (),
    )


def _mig_enabled(handle: Any) -> bool:
    with suppress(pynvml.NVMLError):  # most GPUs cannot be divided
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    return False


def _slices(handle: Any) -> Iterator[str]:
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(pynvml.NVMLError_NotFound):  # a slot without a slice
            yield pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))


def main() -> None:
    """Print the installed GPUs as JSON; exit with status 1 and NVML's message if it fails."""
    try:
        print(json.dumps([asdict(gpu) for gpu in installed_gpus()]))
    except NvmlFault as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
