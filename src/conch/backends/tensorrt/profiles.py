"""Optimization profiles of a TensorRT plan: which shapes it was built for, and which of them fits a request.

A plan with variable dimensions has one profile or more; each gives the smallest, the best and the largest shape of
every input. Nothing here needs TensorRT.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conch.errors import ConfigError, InvalidRequest

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """The shapes of one input, batch dimension included."""

    smallest: Shape
    best: Shape
    largest: Shape

    def admits(self, shape: Shape) -> bool:
        """Whether the input may have a shape."""
        return len(shape) == len(self.smallest) and all(
            low <= size <= high for low, size, high in zip(self.smallest, shape, self.largest, strict=True)
        )

    def distance(self, shape: Shape) -> int:
        """How far a shape is from the best."""
        return sum(abs(size - best) for size, best in zip(shape, self.best, strict=True))

    def __str__(self) -> str:
        return f"{list(self.smallest)} to {list(self.largest)}"


@dataclass(frozen=True, slots=True)
class Profile:
    """One profile: the ranges of all inputs by name."""

    index: int
    ranges: Mapping[str, Range]

    def admits(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether all inputs may have these shapes together."""
        return all(self.ranges[name].admits(shape) for name, shape in shapes.items())

    def distance(self, shapes: Mapping[str, Shape]) -> int:
        """How far shapes are from the best ones."""
        return sum(self.ranges[name].distance(shape) for name, shape in shapes.items())

    @property
    def largest_batch(self) -> int:
        """The most items that all inputs may have along their first dimension."""
        return min((each.largest[0] for each in self.ranges.values() if each.largest), default=0)


def wanted_profiles(document: Mapping[str, Any], instance: str, count: int) -> list[int]:
    """Return the numbers of the profiles that an instance is to have: `instance_group.profile`, else the first.

    `instance` is its name, `count` how many profiles the plan has. Raises ConfigError for one that it does not have.
    """
    group = instance.rpartition("_")[0]
    names = next((each.get("profile", ()) for each in document.get("instance_group", ()) if each["name"] == group), ())
    for name in names:
        if not (name.isascii() and name.isdigit() and int(name) < count):
            raise ConfigError(
                f"profile '{name}' of instance group '{group}': the plan of model '{document['name']}' has {count}, "
                f"which are 0 to {count - 1}"
            )
    return [int(name) for name in names] or [0]


def choose_profile(profiles: Sequence[Profile], shapes: Mapping[str, Shape]) -> Profile:
    """Return the profile that admits the shapes of all inputs and was optimized for the nearest ones.

    Raises InvalidRequest, naming an input and the shapes that it may have.
    """
    fitting = [profile for profile in profiles if profile.admits(shapes)]
    if fitting:
        return min(fitting, key=lambda profile: profile.distance(shapes))
    # An input that fits nowhere; else each fits somewhere, and none of the profiles has them all.
    culprits = [name for name in shapes if not any(each.ranges[name].admits(shapes[name]) for each in profiles)]
    name = (culprits or list(shapes))[0]
    allowed = "; ".join(f"profile {each.index}: {each.ranges[name]}" for each in profiles)
    raise InvalidRequest(f"request specifies invalid shape {list(shapes[name])} for input '{name}'; allowed: {allowed}")


def check_batch(model: str, max_batch_size: int, profiles: Sequence[Profile]) -> None:
    """Raise ConfigError if no profile takes as many items as the configuration allows."""
    supported = max(profile.largest_batch for profile in profiles)
    if max_batch_size > supported:
        raise ConfigError(
            f"unable to load model '{model}', configuration specifies max-batch {max_batch_size} but the profiles of "
            f"the TensorRT plan that its instances have only support max-batch {supported}"
        )
