"""GPU values: what NVML reports, and what a CUDA process can use."""

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
    """A device that processes of this server can use.

    `number` is CUDA's number of the device, as in `gpus` of an instance group. `uuid` is that of the GPU or MIG slice.
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
