"""Read the description of a machine, or describe this one.

The figures of GPUs are those of NVIDIA's data sheets, without sparsity (half of the figures that have it); of a name
with variants, those of the fastest, so that the lower bounds of times hold for all:

* T4: t4-tensor-core-datasheet; V100: volta-v100-datasheet (SXM2 and PCIe)
* A10, A30: a10-datasheet, a30-datasheet; A10G: NVIDIA_AWS_A10G_DataSheet of AWS; A40: nvidia-a40-datasheet
* A100: nvidia-a100-datasheet; A800: nvidia-a800-datasheet (an A100 with slower NVLink)
* L4, L40S: the product pages and l40s-datasheet
* H100, H200: nvidia.com/en-us/data-center/h100, h100 PCIe product brief PB-11133, hpc-datasheet-sc23-h200

The sheets were read through pages that quote them (vendors' product pages, Lightning's table of peak FLOPS, tables of
benchmarks that cite each sheet), last compared in November 2026. NVLink's bandwidth is not used. Memory is nominal:
drivers report up to 6 % less where error correction takes a part.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch.base.extras import install_command
from conch.machine.accelerators.gpus import visible_gpus
from conch.machine.accelerators.vendors.nvml import NvmlFault, installed_gpus
from conch.machine.cores import usable_cores
from conch.machine.memory import total_memory
from conch.measure.advise.advice_facts import DATA_SHEET, GIB, Failure, FigureSource, GpuFacts, MachineFacts


@dataclass(frozen=True, slots=True)
class GpuType:
    """Figures of a data sheet: nominal GiB, GB/s of memory, and dense TFLOPS in 16 bits."""

    memory: int
    bandwidth: float
    tflops: float
    has_fp8: bool = False


_A100, _A100_40 = GpuType(80, 2039, 312), GpuType(40, 1555, 312)
# Words of a name, all of which the text contains → figures; the first row that fits counts.
_GPU_TYPES: tuple[tuple[tuple[str, ...], GpuType | None], ...] = (
    (("T4",), GpuType(16, 320, 65)),
    (("V100", "PCIE"), GpuType(16, 900, 112)),
    (("V100",), GpuType(16, 900, 125)),
    (("A10",), GpuType(24, 600, 125)),
    (("A10G",), GpuType(24, 600, 70)),
    (("A30",), GpuType(24, 933, 165)),
    (("A40",), GpuType(48, 696, 149.7)),
    (("A100", "40GB"), _A100_40),
    (("A100", "PCIE"), GpuType(80, 1935, 312)),
    (("A100",), _A100),
    (("A800", "40GB"), _A100_40),
    (("A800",), _A100),
    (("L4",), GpuType(24, 300, 121, has_fp8=True)),
    (("L40S",), GpuType(48, 864, 362, has_fp8=True)),
    (("H100", "NVL"), None),  # faster memory than the others
    (("H100", "PCIE"), GpuType(80, 2000, 756, has_fp8=True)),
    (("H100",), GpuType(80, 3350, 989, has_fp8=True)),
    (("H200",), GpuType(141, 4800, 989, has_fp8=True)),
)
_SMALL_A100 = 41 * GIB  # names do not always contain 40GB
_UNITS = {"gib": GIB, "gb": 10**9, "mib": 1 << 20, "mb": 10**6, "tib": GIB << 10, "tb": 10**12}
_SIZE = r"(\d+(?:\.\d+)?)\s*(gib|gb|mib|mb|tib|tb)"
_GPUS = re.compile(
    rf"(?:(\d+)\s*[x×]\s*)(?:([a-z][\w-]*(?: [a-z][\w-]*)*)\s*)?(?:{_SIZE})?(?:\s+(HBM\w*|PCIe))?"
    r"\s*(?:(\d+(?:\.\d+)?)\s*GB/s)?\s*(?:(\d+(?:\.\d+)?)\s*TFLOPS)?",
    re.IGNORECASE,
)
_CORES = re.compile(r"(\d+)\s*(?:cores?|cpus?|vcpus?)", re.IGNORECASE)
_MEMORY = re.compile(_SIZE, re.IGNORECASE)
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*GB/s", re.IGNORECASE)
_VENDOR = re.compile(r"(intel|amd|arm)", re.IGNORECASE)
_MAX_GPUS, _MAX_CORES = 1024, 4096
_FP8_CAPABILITY = (8, 9)
_VALID = (
    "expected parts with commas: GPUs as '4×A10G', or with figures as '4×X100 96GiB 1600GB/s 500TFLOPS', cores as "
    "'32 cores', memory as '128GiB', optionally the memory's bandwidth as '50GB/s' and the processor as 'Intel' or "
    "'AMD'"
)
_KEYS = {
    "gpus", "gpu", "gpu_memory", "gpu_bandwidth", "gpu_speed", "cores", "memory", "bandwidth", "processor",
}  # fmt: skip


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
        raise Failure(f"PyYAML is missing: {install_command('monitoring')}, or write JSON") from None
    except (OSError, ValueError, RecursionError) as error:
        raise Failure(f"the description of the machine '{path}' cannot be read: {error}") from None
    if not isinstance(document, dict) or (unknown := sorted(map(str, document.keys() - _KEYS))):
        fault = f"unknown key '{unknown[0]}'" if isinstance(document, dict) else "not a mapping"
        raise Failure(f"the description of the machine '{path}' has {fault}; keys: {', '.join(sorted(_KEYS))}")
    parts = []
    if document.get("gpus"):
        figures = (str(document[key]) for key in ("gpu_memory", "gpu_bandwidth", "gpu_speed") if key in document)
        parts.append(" ".join([f"{document['gpus']}×{document.get('gpu', '')}", *figures]))
    parts += [f"{document['cores']} cores"] if "cores" in document else []
    parts += [str(document[key]) for key in ("memory", "bandwidth", "processor") if key in document]
    return ", ".join(parts)


def _yaml(text: str) -> Any:
    from conch.base.yaml_documents import load_documents

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
            gpus = _gpus(match, part)
        else:
            raise Failure(f"'{part}' is not valid in the description of a machine: {_VALID}")
    if not 0 < cores <= _MAX_CORES or not memory:
        missing = "memory" if cores else "number of cores"
        raise Failure(f"the description of the machine '{text}' has no valid {missing}: {_VALID}")
    return MachineFacts(cores, memory, gpus, is_intel, bandwidth)


def _gpus(match: re.Match[str], part: str) -> GpuFacts:
    """Return the GPUs of a description: its figures, or else those of the data sheet. Raises Failure."""
    count, name = int(match[1]), " ".join(filter(None, (match[2], match[5])))
    memory = int(float(match[3]) * _UNITS[match[4].lower()]) if match[3] else 0
    known = gpu_type(name, memory)
    if not 0 < count <= _MAX_GPUS or (not memory and known is None):
        raise Failure(
            f"'{part}' needs 1 to {_MAX_GPUS} GPUs and the memory of one; known without it: {', '.join(_names())}. "
            f"Give the figures of others, such as '{count}×{name or 'X100'} 96GiB 1600GB/s 500TFLOPS' (bandwidth of "
            "the memory, and dense speed in 16 bits)"
        )
    figures = known or GpuType(0, 0, 0)
    bandwidth, tflops = float(match[6] or figures.bandwidth), float(match[7] or figures.tflops)
    memory = memory or figures.memory * GIB
    speeds = DATA_SHEET if not match[6] and not match[7] else "as stated"
    return GpuFacts(count, name or "GPU", memory, bandwidth * 1e9, tflops * 1e12, figures.has_fp8, speeds)


def _names() -> list[str]:
    return sorted({words[0] for words, figures in _GPU_TYPES if figures})


def gpu_type(name: str, memory: int = 0) -> GpuType | None:
    """Return the figures of a GPU by its name and, of an A100, its bytes of memory; None if they are unknown."""
    words = set(re.split(r"[\s-]+", name.upper()))
    known_type = next((figures for needed, figures in _GPU_TYPES if words.issuperset(needed)), None)
    return _A100_40 if words & {"A100", "A800"} and 0 < memory <= _SMALL_A100 else known_type


def this_machine() -> MachineFacts:
    """Return this machine's cores, memory and GPUs, as far as this process may use them."""
    try:
        visible = visible_gpus(installed_gpus(), os.environ)
    except NvmlFault:
        visible = []
    gpus = None
    if visible:
        smallest = min(visible, key=lambda gpu: gpu.memory_bytes)
        known = gpu_type(smallest.name, smallest.memory_bytes) or GpuType(
            0, 0, 0, smallest.compute_capability >= _FP8_CAPABILITY
        )
        gpus = GpuFacts(
            len(visible),
            smallest.name.removeprefix("NVIDIA "),
            smallest.memory_bytes,
            known.bandwidth * 1e9,
            known.tflops * 1e12,
            known.has_fp8,
        )
    return MachineFacts(usable_cores(), total_memory(), gpus, _is_intel(), 0.0, FigureSource.MEASURED)


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
