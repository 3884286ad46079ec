"""GPUs that are written down, and those that NVML sees."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from conch.errors import InvalidRequest
from conch.llm.planning.gpus import GIB, Gpus, detect_gpus, parse_gpus


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


class _NvmlError(Exception):
    pass


def _nvml(sizes: list[int]) -> ModuleType:
    """As much of the module as is used, over GPUs of these sizes."""
    module = ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=_NvmlError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(sizes),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(total=sizes[index]),
    )
    return module


def test_the_smallest_gpu_of_this_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _nvml([80 * GIB, 40 * GIB]))
    assert detect_gpus() == Gpus(2, 40 * GIB)


def test_without_gpus_it_says_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _nvml([]))
    with pytest.raises(InvalidRequest, match="has no NVIDIA GPU; say which there will be, such as --gpus 8x80GiB"):
        detect_gpus()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(InvalidRequest, match="without the package nvidia-ml-py; say which there will be"):
        detect_gpus()


def test_a_driver_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _nvml([])

    def fail() -> None:
        raise _NvmlError("Driver Not Loaded")

    module.__dict__["nvmlInit"] = fail
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with pytest.raises(InvalidRequest, match=r"sees \(Driver Not Loaded\)"):
        detect_gpus()
