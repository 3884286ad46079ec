"""The GPUs that CUDA shows to this server and its processes, and their numbers.

NVML lists all GPUs of the driver. CUDA shows a process only the GPUs in `CUDA_VISIBLE_DEVICES`, renumbered from 0 in
that order ("CUDA Environment Variables" of the CUDA C++ Programming Guide).
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from logging import getLogger

from conch.machine.accelerators.collectors import has_nvidia_driver

_log = getLogger(__name__)

# A driver takes a few seconds to start a GPU for its first user.
_TIMEOUT_S = 30.0
CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
_CONTAINER_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
# Values of the container toolkit's variable for a container without GPUs.
_NO_GPU = {"none", "void"}


@dataclass(frozen=True, slots=True)
class InstalledGpu:
    """One physical GPU, in NVML's order (by PCI bus). `mig_slices` are the UUIDs of its MIG devices."""

    index: int
    uuid: str  # GPU-…
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    mig_enabled: bool = False
    mig_slices: tuple[str, ...] = ()  # MIG-…
    used_bytes: int = 0  # of its memory, when it was listed


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device that processes of this server can use.

    `number` is CUDA's number of the device, as in `gpus` of an instance group. `uuid` identifies the GPU or MIG slice.
    """

    number: int
    uuid: str
    name: str
    memory_bytes: int  # of the whole GPU
    compute_capability: tuple[int, int]
    used_bytes: int = field(default=0, compare=False)  # of the whole GPU, when it was listed

    def __str__(self) -> str:
        major, minor = self.compute_capability
        size = f"{self.memory_bytes / (1 << 30):.1f} GiB"
        return f"GPU {self.number}: {self.name}, {size}, compute capability {major}.{minor}, {self.uuid}"


def visible_gpus(installed: Sequence[InstalledGpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Return the devices that CUDA shows to a process with this environment, numbered from 0."""
    granted = _granted(installed, environment.get(_CONTAINER_VARIABLE))
    requested = environment.get(CUDA_VARIABLE)
    shown = _all_of(granted) if requested is None else _requested(granted, requested)
    return [
        Gpu(number, uuid, gpu.name, gpu.memory_bytes, gpu.compute_capability, gpu.used_bytes)
        for number, (gpu, uuid) in enumerate(_usable_together(shown))
    ]


def narrowed(environment: Mapping[str, str], numbers: Iterable[int]) -> str:
    """Return the value of `CUDA_VISIBLE_DEVICES` that shows a child process only these devices of its parent."""
    requested = environment.get(CUDA_VARIABLE)
    names = None if requested is None else [part.strip() for part in requested.split(",")]
    return ",".join(str(number) if names is None else names[number] for number in numbers)


def _granted(installed: Sequence[InstalledGpu], variable: str | None) -> Sequence[InstalledGpu]:
    """Apply `NVIDIA_VISIBLE_DEVICES`, the variable of NVIDIA's container toolkit.

    Inside a container the toolkit has already hidden the other GPUs and renumbered the rest. The variable's numbers
    therefore count only if NVML lists more GPUs than it names, that is, if no toolkit has applied it.
    """
    if variable is None:
        return installed
    names = [name for part in variable.split(",") if (name := part.strip())]
    if any(name.lower() in _NO_GPU for name in names):
        return []
    if not names or "all" in map(str.lower, names) or len(names) >= len(installed):
        return installed
    chosen = [gpu for gpu in installed if any(_is_named(gpu, name) for name in names)]
    return chosen or installed


def _is_named(gpu: InstalledGpu, name: str) -> bool:
    if name.partition(":")[0].isdecimal():  # `0:1` is the second MIG device of GPU 0
        return gpu.index == int(name.partition(":")[0])
    return gpu.uuid == name or name in gpu.mig_slices


def _all_of(gpus: Iterable[InstalledGpu]) -> Iterator[tuple[InstalledGpu, str]]:
    return (device for gpu in gpus if (device := _device(gpu)) is not None)


def _requested(gpus: Sequence[InstalledGpu], requested: str) -> Iterator[tuple[InstalledGpu, str]]:
    """Yield the devices in `CUDA_VISIBLE_DEVICES`. CUDA stops at the first name that is invalid or a duplicate."""
    seen: set[str] = set()
    for part in requested.split(","):
        device = _named(gpus, part.strip())
        if device is None or device[1] in seen:
            return
        seen.add(device[1])
        yield device


def _named(gpus: Sequence[InstalledGpu], name: str) -> tuple[InstalledGpu, str] | None:
    if name.isdecimal():
        return _device(gpus[int(name)]) if int(name) < len(gpus) else None
    if name.startswith("MIG-"):
        return next(((gpu, uuid) for gpu in gpus for uuid in gpu.mig_slices if uuid == name), None)
    # A prefix of a UUID is enough if it is unique.
    matching = [gpu for gpu in gpus if name.startswith("GPU-") and gpu.uuid.startswith(name)]
    return _device(matching[0]) if len(matching) == 1 else None


def _device(gpu: InstalledGpu) -> tuple[InstalledGpu, str] | None:
    """Return the device that CUDA uses: the GPU, or its first MIG slice; None if MIG is enabled without slices."""
    if not gpu.mig_enabled:
        return gpu, gpu.uuid
    return (gpu, gpu.mig_slices[0]) if gpu.mig_slices else None


def _usable_together(requested: Iterable[tuple[InstalledGpu, str]]) -> list[tuple[InstalledGpu, str]]:
    """Apply MIG's rule: a process uses either whole GPUs or a single slice ("MIG User Guide", device enumeration)."""
    devices = list(requested)
    whole = [device for device in devices if not device[0].mig_enabled]
    if len(whole) == len(devices):
        return devices
    return devices[:1] if devices[0][0].mig_enabled else whole


async def discover_gpus(min_capability: tuple[int, int], warn: Callable[[str], None] = _log.warning) -> list[Gpu]:
    """Return and log the GPUs that CUDA shows to this server and its processes.

    GPUs below `min_capability` are left out. `warn` is called with each reason to run without a present GPU.
    """
    usable = []
    for gpu in await list_gpus(warn):
        if gpu.compute_capability < min_capability:
            warn("{} is not used: --min-supported-compute-capability is {}.{}".format(gpu, *min_capability))
        else:
            _log.info("%s", gpu)
            usable.append(gpu)
    return usable


async def list_gpus(warn: Callable[[str], None] = _log.warning) -> list[Gpu]:
    """Return the GPUs that CUDA shows to this server, with the memory in use now; without a driver none.

    NVML runs in a separate process; if that fails, crashes or hangs, the list is empty, and `warn` is called.
    """
    if not has_nvidia_driver():
        return []
    command = [sys.executable, "-m", "conch.machine.accelerators.vendors.nvml"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, error = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
    except TimeoutError:
        process.kill()
        # Not awaited: a process that hangs in the driver exits only when the driver returns.
        warn(f"NVML did not answer within {_TIMEOUT_S:g} s; models run without GPUs")
        return []
    if process.returncode != 0:
        lines = error.decode(errors="replace").strip().splitlines()
        cause = lines[-1] if lines else f"its process exited with status {process.returncode}"
        warn(f"NVML cannot list the GPUs of this machine: {cause}; models run without GPUs")
        return []
    return visible_gpus([_installed_gpu(row) for row in json.loads(output)], os.environ)


def _installed_gpu(row: Mapping[str, object]) -> InstalledGpu:
    as_tuples = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return InstalledGpu(**as_tuples)  # type: ignore[arg-type]
