"""The search space: named dimensions with a few values each, and points as tuples of indices into the values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Value: TypeAlias = str | int | float | bool | tuple[int, ...] | None
"""Of a dimension. None leaves the field as the configuration has it."""
Point: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dimension:
    """A quantity and its values. `ordered`: neighbours behave alike. `reloads`: a change needs a load of the model."""

    name: str
    values: tuple[Value, ...]
    ordered: bool = True
    reloads: bool = True

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) != len(self.values):
            raise ValueError(f"'{self.name}' needs distinct values, got {self.values}")


@dataclass(frozen=True, slots=True)
class Space:
    """The product of dimensions."""

    dimensions: tuple[Dimension, ...]

    @property
    def size(self) -> int:
        """The number of points."""
        return prod(len(dimension.values) for dimension in self.dimensions)

    def points(self) -> Iterator[Point]:
        """Yield all points, the last dimension fastest."""
        yield from product(*(range(len(dimension.values)) for dimension in self.dimensions))

    def settings(self, point: Point) -> dict[str, Value]:
        """Return the values of a point by name."""
        return {
            dimension.name: dimension.values[index] for dimension, index in zip(self.dimensions, point, strict=True)
        }

    def nearest(self, settings: Mapping[str, Value]) -> Point:
        """Return the point with these values; a value that a dimension does not have becomes its first one."""
        return tuple(
            dimension.values.index(settings[dimension.name]) if settings.get(dimension.name) in dimension.values else 0
            for dimension in self.dimensions
        )

    def coordinates(self, point: Point) -> NDArray[np.float64]:
        """Return the place of a point for distances: ordered dimensions from 0 to 1, others one axis a value."""
        axes: list[float] = []
        for dimension, index in zip(self.dimensions, point, strict=True):
            if dimension.ordered:
                axes.append(index / max(1, len(dimension.values) - 1))
            else:
                axes.extend(np.sqrt(0.5) * (number == index) for number in range(len(dimension.values)))
        return np.array(axes)

    def axis_owner(self) -> list[int]:
        """Return for each axis of `coordinates` the index of its dimension."""
        return [
            number
            for number, dimension in enumerate(self.dimensions)
            for _ in range(1 if dimension.ordered else len(dimension.values))
        ]

    def neighbours(self, point: Point, dimension: int) -> list[Point]:
        """Return the points beside one along a dimension; all others of it if it is not ordered."""
        owner, at = self.dimensions[dimension], point[dimension]
        indices = range(len(owner.values))
        near = [index for index in indices if index != at and (not owner.ordered or abs(index - at) == 1)]
        return [(*point[:dimension], index, *point[dimension + 1 :]) for index in near]
