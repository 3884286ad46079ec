"""A machine with fake GPUs: `libnvidia-ml.so.1` compiled from `fake_nvml.c`."""

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_nvml.c")
A100 = "GPU-aaaaaaaa-0000-0000-0000-000000000000 NVIDIA_A100 40960 8 0"
H100 = "GPU-bbbbbbbb-0000-0000-0000-000000000000 NVIDIA_H100 81920 9 0"
K80 = "GPU-cccccccc-0000-0000-0000-000000000000 Tesla_K80 11441 3 7"
SLICES = "MIG-11111111-0000-0000-0000-000000000000 MIG-22222222-0000-0000-0000-000000000000"


def compile_library(folder: Path) -> Path:
    """Compile the library into a folder and return the folder."""
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(folder / "libnvidia-ml.so.1"), str(SOURCE)]
    subprocess.run(command, check=True)
    return folder


def machine_with(library: Path, folder: Path, *lines: str) -> dict[str, str]:
    """Return the environment variables of a machine with these GPUs, each a line as `fake_nvml.c` reads it."""
    trace = folder / "gpus.txt"
    trace.write_text("".join(f"{line}\n" for line in lines))
    return {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(trace)}
