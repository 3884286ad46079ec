"""Read the description of a machine, or describe this one."""

import json
import os
import re
from pathlib import Path
from typing import Any

from conch.accelerators.nvidia.nvml import NvmlFault, installed_gpus
from conch.accelerators.visible import visible_gpus
from conch.tuning.advisor.facts import GIB, Failure, FigureSource, GpuFacts, MachineFacts

# Name in the text of a GPU → memory in GiB, GB/s of memory, dense TFLOPS in 16 bits, FP8; from NVIDIA's data sheets.
_GPU_TYPES: dict[str, tuple[int, int, float, bool]] = {
    "T4": (16, 320, 65, False),
    "V100": (16, 900, 125, False),
    "A10G": (24, 600, 70, False),
    "A10": (24, 600, 125, False),
    "A30": (24, 933, 165, False),
    "A40": (48, 696, 150, False),
    "A800": (80, 2039, 312, False),
    "A100": (80, 2039, 312, False),
    "L40S": (48, 864, 362, True),
    "L4": (24, 300, 121, True),
    "H100": (80, 3350, 989, True),
    "H200": (141, 4800, 989, True),
}
# The variants with 40 GB have slower memory than those with 80 GB.
_A100_40_GBPS = 1555
_UNITS = {"gib": GIB, "gb": 10**9, "mib": 1 << 20, "mb": 10**6, "tib": GIB << 10, "tb": 10**12}
_SIZE = r"(\d+(?:\.\d+)?)\s*(gib|gb|mib|mb|tib|tb)"
_GPUS = re.compile(rf"(?:(\d+)\s*[x×]\s*)(?:([a-z][\w-]*(?: [a-z]\w*)*)\s*)?(?:{_SIZE})?", re.IGNORECASE)
_CORES = re.compile(r"(\d+)\s*(?:cores?|cpus?|vcpus?)", re.IGNORECASE)
_MEMORY = re.compile(_SIZE, re.IGNORECASE)
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*GB/s", re.IGNORECASE)
_VENDOR = re.compile(r"(intel|amd|arm)", re.IGNORECASE)
_MAX_GPUS, _MAX_CORES = 1024, 4096
_VALID = (
    "expected parts with commas: GPUs as '4×A10G 24GiB', cores as '32 cores', memory as '128GiB', optionally the "
    "memory's bandwidth as '50GB/s' and the processor as 'Intel' or 'AMD'"
)
_KEYS = {"gpus", "gpu", "gpu_memory", "cores", "memory", "bandwidth", "processor"}


def read_machine(text: str) -> MachineFacts:
    """Return the machine of a description, or of a file in YAML or JSON. Raises Failure."""
    path = Path(text)
    if path.suffix in (".yaml", ".yml", ".json"):
        text = _description(path)
    return _parse(text)


def _description(path: Path) -> str:
    """Return the contents of a file as the text of a description. Raises Failure."""
    try:
        text = path.read_text(encoding="utf-8")
        document: Any = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except ModuleNotFoundError:
        raise Failure("PyYAML is missing: pip install 'conch-server[monitoring]', or write JSON") from None
    except (OSError, ValueError) as error:
        raise Failure(f"the description of the machine '{path}' cannot be read: {error}") from None
    if not isinstance(document, dict) or (unknown := sorted(map(str, document.keys() - _KEYS))):
        found = f"unknown key '{unknown[0]}'" if isinstance(document, dict) else "not a mapping"
        raise Failure(f"the description of the machine '{path}' has {found}; keys: {', '.join(sorted(_KEYS))}")
    parts = []
    if document.get("gpus"):
        parts.append(f"{document['gpus']}×{document.get('gpu', '')} {document.get('gpu_memory', '')}".strip())
    parts += [f"{document['cores']} cores"] if "cores" in document else []
    parts += [str(document[key]) for key in ("memory", "bandwidth", "processor") if key in document]
    return ", ".join(parts)


def _yaml(text: str) -> Any:
    from conch.monitoring.yaml_documents import load_documents

    documents = load_documents(text)
    return documents[0].value if documents else None


def _parse(text: str) -> MachineFacts:
    cores = memory = 0
    gpus: GpuFacts | None = None
    bandwidth, is_intel = 0.0, False
    for part in filter(None, map(str.strip, text.split(","))):
        if match := _CORES.fullmatch(part):
            cores = int(match[1])
        elif match := _BANDWIDTH.fullmatch(part):
            bandwidth = float(match[1]) * 1e9
        elif match := _MEMORY.fullmatch(part):
            memory = int(float(match[1]) * _UNITS[match[2].lower()])
        elif match := _VENDOR.fullmatch(part):
            is_intel = match[1].lower() == "intel"
        elif gpus is None and (match := _GPUS.fullmatch(part)):
            size = int(float(match[3]) * _UNITS[match[4].lower()]) if match[3] else 0
            gpus = _gpus(int(match[1]), match[2] or "", size, part)
        else:
            raise Failure(f"'{part}' is not valid in the description of a machine: {_VALID}")
    if not 0 < cores <= _MAX_CORES or not memory:
        missing = "memory" if cores else "number of cores"
        raise Failure(f"the description of the machine '{text}' has no valid {missing}: {_VALID}")
    return MachineFacts(cores, memory, gpus, is_intel, bandwidth)


def _gpus(count: int, name: str, memory: int, part: str) -> GpuFacts:
    known = gpu_type(name)
    if not 0 < count <= _MAX_GPUS or (not memory and known is None):
        names = ", ".join(_GPU_TYPES)
        raise Failure(f"'{part}' needs 1 to {_MAX_GPUS} GPUs and the memory of one; known without it: {names}")
    size, speed, flops, has_fp8 = known or (0, 0, 0, False)
    memory = memory or size * GIB
    if name.upper().startswith(("A100", "A800")) and memory <= 40 * GIB:
        speed = _A100_40_GBPS
    return GpuFacts(count, name or "GPU", memory, speed * 1e9, flops * 1e12, has_fp8)


def gpu_type(name: str) -> tuple[int, int, float, bool] | None:
    """Return memory, bandwidth, speed and FP8 of the type whose name is a word of the text; None if unknown."""
    words = re.split(r"[\s-]+", name.upper())
    return next((_GPU_TYPES[word] for word in words if word in _GPU_TYPES), None)


def this_machine() -> MachineFacts:
    """Return this machine's cores, memory and GPUs, as far as this process may use them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        found = visible_gpus(installed_gpus(), os.environ)
    except NvmlFault:
        found = []
    gpus = None
    if found:
        smallest = min(found, key=lambda gpu: gpu.memory_bytes)
        _, speed, flops, has_fp8 = gpu_type(smallest.name) or (0, 0, 0, smallest.compute_capability >= (8, 9))
        name = smallest.name.removeprefix("NVIDIA ")
        if name.startswith(("A100", "A800")) and smallest.memory_bytes <= 41 * GIB:
            speed = _A100_40_GBPS
        gpus = GpuFacts(len(found), name, smallest.memory_bytes, speed * 1e9, flops * 1e12, has_fp8)
    return MachineFacts(len(os.sched_getaffinity(0)), memory, gpus, _is_intel(), 0.0, FigureSource.MEASURED)


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
