"""A machine with fake GPUs: `libnvidia-ml.so.1` compiled from `fake_nvml.c`."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
A100 = "GPU-aaaaaaaa-0000-0000-0000-000000000000 NVIDIA_A100 40960 8 0"
H100 = "GPU-bbbbbbbb-0000-0000-0000-000000000000 NVIDIA_H100 81920 9 0"
K80 = "GPU-cccccccc-0000-0000-0000-000000000000 Tesla_K80 11441 3 7"
SLICES = "MIG-11111111-0000-0000-0000-000000000000 MIG-22222222-0000-0000-0000-000000000000"

# Values of a GPU, in NVML's units; the comments name what is not obvious.
VALUES = {
    "sm_clock": 1410,
    "memory_clock": 1593,
    "temperature": 43,
    "field_82": 51,  # temperature of the memory
    "power": 245678,  # mW
    "energy": 987654321,  # mJ
    "pcie_replay": 3,
    "utilization": 29,
    "memory_utilization": 12,
    "encoder": 7,
    "decoder": 58,
    "memory_used": 9 << 30,
    "memory_reserved": 512 << 20,
    "remapped_corrected": 2,
    "remapped_uncorrected": 1,
    "remapped_pending": 0,
    "remapped_failed": 1,
    "vgpu_licensed": 1,
    "power_limit": 400000,
    "power_limit_enforced": 350000,
    "clock_event_reasons": 4,
    **{f"violation_{policy}": 1_000_000 * (policy + 1) for policy in range(6)},
    "ecc_sbe_volatile": 11,
    "ecc_dbe_volatile": 12,
    "ecc_sbe_aggregate": 13,
    "ecc_dbe_aggregate": 14,
    "retired_sbe": 5,
    "retired_dbe": 6,
    "retired_pending": 1,
    "field_38": 21,  # NVLink: CRC of flow control, CRC of data, replay, recovery
    "field_45": 22,
    "field_52": 23,
    "field_59": 24,
    "field_138": 1000,  # NVLink: KiB sent and received
    "field_139": 2000,
    "pcie_tx": 1500,  # KB/s
    "pcie_rx": 2500,
}
# Activity as GPM reports it, of Hopper and later: percent, and MiB/s of PCIe.
ACTIVITY = {1: 81.5, 2: 70, 3: 40, 5: 33, 10: 25, 11: 1, 12: 2, 13: 3, 20: 100, 21: 200}
GPM = {f"gpm_{number}": value for number, value in ACTIVITY.items()}


def compile_library(folder: Path) -> Path:
    """Compile the library into a folder and return the folder."""
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(command, check=True)
    return folder


def gpu(line: str, *settings: str, **values: float) -> str:
    """Return the lines of a GPU with values and further settings, such as `lost`."""
    texts = (*(f"{name} {value:.17g}" for name, value in values.items()), *settings)
    return "\n".join((line, *(f"  {text}" for text in texts)))


def write_trace(folder: Path, *lines: str) -> Path:
    """Write what the library reads; a running program sees the change at its next call."""
    trace = folder / "gpus.txt"
    new = folder / "gpus.new"
    new.write_text("".join(f"{line}\n" for line in lines))
    new.replace(trace)
    return trace


def machine_with(library: Path, folder: Path, *lines: str) -> dict[str, str]:
    """Return the environment variables of a machine with these GPUs, each a line as `fake_nvml.c` reads it."""
    return {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(write_trace(folder, *lines))}
