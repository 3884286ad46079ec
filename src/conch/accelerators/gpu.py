"""A GPU as values: what NVML reports of it, and what a process with CUDA can use."""

from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device that processes of this server can use, under the number that CUDA gives it there.

    `number` is what `gpus` in an instance group names. `uuid` is that of the GPU, or of its MIG slice.
    """

    number: int
    uuid: str
    name: str
    memory_bytes: int  # of the whole GPU
    compute_capability: tuple[int, int]

    def __str__(self) -> str:
        major, minor = self.compute_capability
        size = f"{self.memory_bytes / (1 << 30):.1f} GiB"
        return f"GPU {self.number}: {self.name}, {size}, compute capability {major}.{minor}, {self.uuid}"
