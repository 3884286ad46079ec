"""GPUs in the notation of flags, and those that NVML finds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conch.base.errors import InvalidRequest
from conch.measure.advise.engine_plan import GIB, Gpus, parse_gpus
from tests.machine.accelerators.nvml import A100, H100, compile_library, machine_with


@pytest.mark.parametrize(
    ("text", "count", "memory"),
    [("8x80GiB", 8, 80 * GIB), ("24GiB", 1, 24 * GIB), ("2 x 40gb", 2, 40 * 10**9), ("1x23028MiB", 1, 23028 << 20)],
)
def test_gpus_are_written_as_number_and_memory(text: str, count: int, memory: int) -> None:
    assert parse_gpus(text, nodes=2) == Gpus(count, memory, 2)


@pytest.mark.parametrize("text", ["", "8", "8x80", "0x80GiB", "8x0GiB", "-1x80GiB", "H100", "99999x1GiB"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="such as 8x80GiB"):
        parse_gpus(text)


def detected(library: Path, folder: Path, *gpus: str) -> str:
    """What `detect_gpus` returns or raises on a machine with these GPUs."""
    code = (
        "from conch.base.errors import InvalidRequest\nfrom conch.measure.advise.engine_plan import detect_gpus\n"
        "try: print(repr(detect_gpus()))\nexcept InvalidRequest as error: print(error.message)"
    )
    hidden = {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    machine = {**variables, **machine_with(library, folder, *gpus)}
    done = subprocess.run([sys.executable, "-c", code], env=machine, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("nvml"))


def test_the_smallest_gpu_of_this_machine_counts(library: Path, tmp_path: Path) -> None:
    assert detected(library, tmp_path, H100, A100) == repr(Gpus(2, 40 * GIB))


def test_the_error_without_gpus_has_a_remedy(library: Path, tmp_path: Path) -> None:
    expected = "this machine has no NVIDIA GPU; describe the GPUs, such as --gpus 8x80GiB"
    assert detected(library, tmp_path) == expected
    assert detected(tmp_path, tmp_path) == expected  # no driver at all


def test_a_driver_that_fails_is_named(library: Path, tmp_path: Path) -> None:
    assert "in this machine (RM has detected an NVML/RM version mismatch); describe" in detected(
        library, tmp_path, "error 18"
    )
