"""CUDA_VISIBLE_DEVICES: the GPUs that CUDA shows of those that NVML lists."""

import pytest

from conch.machine.accelerators.gpus import Gpu, InstalledGpu, narrowed, visible_gpus


def installed(index: int, *slices: str, mig: bool = False) -> InstalledGpu:
    return InstalledGpu(index, f"GPU-{index}abc", f"gpu{index}", 1 << 30, (8, index), mig or bool(slices), slices)


FOUR = [installed(index) for index in range(4)]


def uuids(gpus: list[InstalledGpu], **environment: str) -> list[str]:
    variables = {f"{name}_VISIBLE_DEVICES": value for name, value in environment.items()}
    shown = visible_gpus(gpus, variables)
    assert [gpu.number for gpu in shown] == list(range(len(shown)))
    return [gpu.uuid for gpu in shown]


def test_all_gpus_are_visible_by_default() -> None:
    assert uuids(FOUR) == ["GPU-0abc", "GPU-1abc", "GPU-2abc", "GPU-3abc"]
    assert visible_gpus(FOUR, {})[1] == Gpu(1, "GPU-1abc", "gpu1", 1 << 30, (8, 1))
    assert uuids([]) == []


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("2,0", ["GPU-2abc", "GPU-0abc"]),  # in the given order, renumbered
        (" 1 , 3 ", ["GPU-1abc", "GPU-3abc"]),
        ("GPU-3abc,1", ["GPU-3abc", "GPU-1abc"]),
        ("GPU-3", ["GPU-3abc"]),  # the beginning of one UUID
        ("GPU-", []),  # and of several
        ("0,9,1", ["GPU-0abc"]),  # CUDA stops at what is not valid
        ("-1", []),
        ("", []),
        ("NoDevFiles", []),
        ("1,1,2", ["GPU-1abc"]),
        ("MIG-5", []),
    ],
)
def test_cuda_visible_devices_chooses(variable: str, expected: list[str]) -> None:
    assert uuids(FOUR, CUDA=variable) == expected


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("all", 4),
        ("", 4),  # as without the variable
        ("none", 0),
        ("void", 0),
        ("1,2", 2),
        ("GPU-0abc", 1),
        ("0:1", 1),  # a slice of GPU 0, seen from outside of a container
        ("6", 4),  # not numbers of this machine: the toolkit has renumbered what it left
    ],
)
def test_nvidia_visible_devices_restricts(variable: str, expected: int) -> None:
    assert len(uuids(FOUR, NVIDIA=variable)) == expected


def test_inside_a_container_the_toolkit_has_already_chosen() -> None:
    # The host's GPUs 2 and 3 are 0 and 1 here.
    assert uuids(FOUR[:2], NVIDIA="2,3") == ["GPU-0abc", "GPU-1abc"]
    assert uuids(FOUR[:2], NVIDIA="2,3", CUDA="1") == ["GPU-1abc"]
    assert uuids(FOUR, NVIDIA="1,2", CUDA="1") == ["GPU-2abc"]


def test_a_process_uses_one_mig_slice() -> None:
    divided = [installed(0, "MIG-a", "MIG-b"), installed(1, "MIG-c")]
    assert uuids(divided) == ["MIG-a"]
    assert uuids(divided, CUDA="MIG-c,MIG-a") == ["MIG-c"]
    assert uuids(divided, CUDA="1") == ["MIG-c"]
    assert uuids([installed(0, mig=True)]) == []


def test_whole_gpus_take_precedence_over_slices() -> None:
    mixed = [installed(0, "MIG-a"), installed(1), installed(2)]
    assert uuids(mixed, CUDA="1,2") == ["GPU-1abc", "GPU-2abc"]
    assert uuids(mixed, CUDA="1,MIG-a") == ["GPU-1abc"]
    assert uuids(mixed, CUDA="MIG-a,1") == ["MIG-a"]


def test_a_child_is_shown_some_of_its_parents_gpus() -> None:
    assert narrowed({}, [1, 3]) == "1,3"
    assert narrowed({"CUDA_VISIBLE_DEVICES": "GPU-9, 4,7"}, [0, 2]) == "GPU-9,7"
