"""The GPUs of a plan: in a notation such as `8x80GiB`, or those of this machine."""

import os
import re
from dataclasses import dataclass

from conch.base.errors import InvalidRequest
from conch.machine.accelerators.gpus import visible_gpus
from conch.machine.accelerators.nvidia.nvml import NvmlFault, installed_gpus

GIB = 1 << 30
_UNITS = {"gib": GIB, "gb": 10**9, "mib": 1 << 20, "mb": 10**6}
_NOTATION = re.compile(r"(?:(\d+)\s*x\s*)?(\d+(?:\.\d+)?)\s*(gib|gb|mib|mb)", re.IGNORECASE)
_MAX_GPUS = 1024


@dataclass(frozen=True, slots=True)
class Gpus:
    """`per_node` GPUs in each of `nodes` machines, all with the same memory."""

    per_node: int
    memory: int  # bytes of one
    nodes: int = 1

    @property
    def count(self) -> int:
        """Number of all GPUs."""
        return self.per_node * self.nodes

    def __str__(self) -> str:
        where = f" in each of {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.per_node} GPU{'s' if self.per_node > 1 else ''} of {self.memory / GIB:.1f} GiB{where}"


def parse_gpus(text: str, nodes: int = 1) -> Gpus:
    """Parse `8x80GiB`, or `80GiB` for one. Raises InvalidRequest."""
    match = _NOTATION.fullmatch(text.strip())
    count = int(match[1] or 1) if match else 0
    if match is None or not 0 < count <= _MAX_GPUS or float(match[2]) <= 0:
        raise InvalidRequest(
            f"'{text}' is not valid for GPUs: expected their number and the memory of one, such as 8x80GiB"
        )
    return Gpus(count, int(float(match[2]) * _UNITS[match[3].lower()]), nodes)


def detect_gpus(nodes: int = 1) -> Gpus:
    """Return this machine's GPUs with the memory of the smallest. Raises InvalidRequest if NVML finds none."""
    remedy = "describe the GPUs, such as --gpus 8x80GiB"
    try:
        sizes = [gpu.memory_bytes for gpu in visible_gpus(installed_gpus(), os.environ)]
    except NvmlFault as error:
        raise InvalidRequest(f"NVML finds no NVIDIA GPU in this machine ({error}); {remedy}") from None
    if not sizes:
        raise InvalidRequest(f"this machine has no NVIDIA GPU; {remedy}")
    return Gpus(len(sizes), min(sizes), nodes)
