"""Which profile of a plan an instance has, and which of them a request gets."""

from typing import Any

import pytest

from conch.base.errors import ConfigError, InvalidRequest
from conch.server.backends.tensorrt.profiles import (
    Profile,
    ShapeRange,
    check_batch,
    choose_profile,
    profile_indices,
)

SMALL = Profile(0, {"x": ShapeRange((1, 3), (2, 3), (4, 3)), "mask": ShapeRange((1,), (2,), (4,))})
LARGE = Profile(1, {"x": ShapeRange((1, 3), (32, 3), (64, 3)), "mask": ShapeRange((1,), (32,), (64,))})


def document(*profiles: str) -> dict[str, Any]:
    groups = [{"name": "m_0", "profile": list(profiles)}, {"name": "m_1", "profile": ["1"]}]
    return {"name": "m", "instance_group": groups}


@pytest.mark.parametrize(
    ("profiles", "instance", "wanted"),
    [(["0", "2"], "m_0_0", [0, 2]), ([], "m_0_0", [0]), (["0"], "m_1_3", [1]), (["0"], "other_0", [0])],
)
def test_profiles_of_an_instance(profiles: list[str], instance: str, wanted: list[int]) -> None:
    assert profile_indices(document(*profiles), instance, 3) == wanted


@pytest.mark.parametrize("name", ["3", "-1", "fast", "²", ""])
def test_a_profile_that_is_not_there(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        profile_indices(document(name), "m_0_0", 3)
    assert caught.value.message == (f"profile '{name}' of instance group 'm_0': the plan of 'm' has profiles 0 to 2")


@pytest.mark.parametrize(("batch", "number"), [(1, 0), (4, 0), (5, 1), (64, 1)])
def test_the_profile_is_the_nearest_that_admits_the_shapes(batch: int, number: int) -> None:
    for profiles in ([SMALL, LARGE], [LARGE, SMALL]):
        assert choose_profile(profiles, {"x": (batch, 3), "mask": (batch,)}).index == number


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            {"x": (65, 3), "mask": (4,)},
            (
                "request specifies invalid shape [65, 3] for input 'x'; allowed: "
                "profile 0: [1, 3] to [4, 3]; profile 1: [1, 3] to [64, 3]"
            ),
        ),
        ({"x": (2, 3), "mask": (0,)}, "invalid shape [0] for input 'mask'"),
        ({"x": (2, 4), "mask": (2,)}, "invalid shape [2, 4] for input 'x'"),
        ({"x": (2, 3, 1), "mask": (2,)}, "invalid shape [2, 3, 1] for input 'x'"),
    ],
)
def test_shapes_that_no_profile_admits(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        choose_profile([SMALL, LARGE], shapes)
    assert message in caught.value.message


def test_shapes_that_no_profile_admits_together() -> None:
    few = Profile(0, {"x": ShapeRange((1,), (1,), (4,)), "y": ShapeRange((8,), (8,), (8,))})
    many = Profile(1, {"x": ShapeRange((8,), (8,), (8,)), "y": ShapeRange((1,), (1,), (4,))})
    with pytest.raises(
        InvalidRequest, match=r"invalid shape \[2\] for input 'x'; allowed: profile 0: \[1\] to \[4\]; "
    ):
        choose_profile([few, many], {"x": (2,), "y": (2,)})


def test_the_batch_is_as_large_as_the_smallest_of_the_inputs() -> None:
    uneven = Profile(
        0,
        {"x": ShapeRange((1, 3), (2, 3), (16, 3)), "y": ShapeRange((1,), (2,), (8,)), "scalar": ShapeRange((), (), ())},
    )
    assert uneven.max_batch_size == 8
    check_batch("m", 64, [SMALL, LARGE])
    with pytest.raises(ConfigError) as caught:
        check_batch("m", 65, [SMALL, LARGE])
    assert caught.value.message == (
        "unable to load model 'm', configuration specifies max-batch 65 but the profiles of its instances in the "
        "TensorRT plan only support max-batch 64"
    )
