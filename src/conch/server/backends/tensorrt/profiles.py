"""Optimization profiles of a TensorRT plan, and the choice of one for a request. Does not import TensorRT.

A plan with variable dimensions has one profile or more; each has the minimum, optimum and maximum shape of every input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conch.base.errors import ConfigError, InvalidRequest

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """The shapes of one input, including the batch dimension."""

    minimum: Shape
    optimum: Shape
    maximum: Shape

    def admits(self, shape: Shape) -> bool:
        """Whether the input may have this shape."""
        return len(shape) == len(self.minimum) and all(
            low <= size <= high for low, size, high in zip(self.minimum, shape, self.maximum, strict=True)
        )

    def distance(self, shape: Shape) -> int:
        """Return the distance of a shape from the optimum."""
        return sum(abs(size - optimum) for size, optimum in zip(shape, self.optimum, strict=True))

    def __str__(self) -> str:
        return f"{list(self.minimum)} to {list(self.maximum)}"


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile: the ranges of all inputs by name."""

    index: int
    ranges: Mapping[str, ShapeRange]

    def admits(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether the inputs may have these shapes."""
        return all(self.ranges[name].admits(shape) for name, shape in shapes.items())

    def distance(self, shapes: Mapping[str, Shape]) -> int:
        """Return the distance of shapes from the optimum."""
        return sum(self.ranges[name].distance(shape) for name, shape in shapes.items())

    @property
    def max_batch_size(self) -> int:
        """The maximum of the first dimension that all inputs support."""
        return min((bounds.maximum[0] for bounds in self.ranges.values() if bounds.maximum), default=0)


def profile_indices(document: Mapping[str, Any], instance: str, count: int) -> list[int]:
    """Return the profiles of an instance: `instance_group.profile`, else the first.

    `instance` is its name, `count` the number of profiles in the plan. Raises ConfigError for a missing profile.
    """
    group = instance.rpartition("_")[0]
    names = next(
        (
            group_entry.get("profile", ())
            for group_entry in document.get("instance_group", ())
            if group_entry["name"] == group
        ),
        (),
    )
    for name in names:
        if not (name.isascii() and name.isdigit() and int(name) < count):
            raise ConfigError(
                f"profile '{name}' of instance group '{group}': the plan of '{document['name']}' has profiles 0 to "
                f"{count - 1}"
            )
    return [int(name) for name in names] or [0]


def choose_profile(profiles: Sequence[Profile], shapes: Mapping[str, Shape]) -> Profile:
    """Return the profile that admits the shapes of all inputs and has the nearest optimum.

    Raises InvalidRequest, which names an input and its allowed shapes.
    """
    fitting = [profile for profile in profiles if profile.admits(shapes)]
    if fitting:
        return min(fitting, key=lambda profile: profile.distance(shapes))
    # An input that no profile admits; if each is admitted by some profile, but not all by one, the first.
    inadmissible = [
        name for name in shapes if not any(profile.ranges[name].admits(shapes[name]) for profile in profiles)
    ]
    name = (inadmissible or list(shapes))[0]
    allowed = "; ".join(f"profile {profile.index}: {profile.ranges[name]}" for profile in profiles)
    raise InvalidRequest(f"request specifies invalid shape {list(shapes[name])} for input '{name}'; allowed: {allowed}")


def check_batch(model: str, max_batch_size: int, profiles: Sequence[Profile]) -> None:
    """Raise ConfigError if no profile supports the configured batch size."""
    supported = max(profile.max_batch_size for profile in profiles)
    if max_batch_size > supported:
        raise ConfigError(
            f"unable to load model '{model}', configuration specifies max-batch {max_batch_size} but the profiles of "
            f"its instances in the TensorRT plan only support max-batch {supported}"
        )
