"""Apply `CUDA_VISIBLE_DEVICES`: which installed GPUs the processes of this server see, and their numbers.

NVML lists all GPUs of the driver. CUDA shows a process only the GPUs in `CUDA_VISIBLE_DEVICES`, renumbered from 0 in
that order ("CUDA Environment Variables" of the CUDA C++ Programming Guide).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from conch.machine.accelerators.gpu import Gpu, InstalledGpu

CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
_CONTAINER_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
# Values of the container toolkit's variable for a container without GPUs.
_NO_GPU = {"none", "void"}


def visible_gpus(installed: Sequence[InstalledGpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Return the devices that CUDA shows to a process with this environment, numbered from 0."""
    granted = _granted(installed, environment.get(_CONTAINER_VARIABLE))
    requested = environment.get(CUDA_VARIABLE)
    found = _all_of(granted) if requested is None else _requested(granted, requested)
    return [
        Gpu(number, uuid, gpu.name, gpu.memory_bytes, gpu.compute_capability)
        for number, (gpu, uuid) in enumerate(_usable_together(found))
    ]


def narrowed(environment: Mapping[str, str], numbers: Iterable[int]) -> str:
    """Return the value of `CUDA_VISIBLE_DEVICES` that shows a child process only these devices of its parent."""
    requested = environment.get(CUDA_VARIABLE)
    names = None if requested is None else [each.strip() for each in requested.split(",")]
    return ",".join(str(number) if names is None else names[number] for number in numbers)


def _granted(installed: Sequence[InstalledGpu], variable: str | None) -> Sequence[InstalledGpu]:
    """Apply `NVIDIA_VISIBLE_DEVICES`, the variable of NVIDIA's container toolkit.

    Inside a container the toolkit has already hidden the other GPUs and renumbered the rest. The variable's numbers
    therefore count only if NVML lists more GPUs than it names, that is, if no toolkit has applied it.
    """
    if variable is None:
        return installed
    names = [name for each in variable.split(",") if (name := each.strip())]
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
    for each in requested.split(","):
        device = _named(gpus, each.strip())
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


def _usable_together(found: Iterable[tuple[InstalledGpu, str]]) -> list[tuple[InstalledGpu, str]]:
    """Apply MIG's rule: a process uses either whole GPUs or a single slice ("MIG User Guide", device enumeration)."""
    devices = list(found)
    whole = [device for device in devices if not device[0].mig_enabled]
    if len(whole) == len(devices):
        return devices
    return devices[:1] if devices[0][0].mig_enabled else whole
