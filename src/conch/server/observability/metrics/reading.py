"""Tables of metrics: each row has a metric of the catalogue and how to read its value from a source."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from conch.domain.exposition import Family, Labels, Point, Value

S = TypeVar("S")
NO_LABELS = Labels({})


@dataclass(frozen=True, slots=True)
class Reading(Generic[S]):
    """A metric of sources, such as models. `value` returns None for a source that does not have it."""

    metric: str
    value: Callable[[S], Value | None]


@dataclass(frozen=True, slots=True)
class LabelledReading(Generic[S]):
    """A metric with several series of each source, by one more label."""

    metric: str
    label: str
    values: Callable[[S], Sequence[tuple[str, Value]]]


def read(readings: Sequence[Reading[S] | LabelledReading[S]], sources: Sequence[tuple[Labels, S]]) -> Iterator[Family]:
    """Yield the family of each row. Values are read when the points are iterated over."""
    for reading in readings:
        points = _each(reading, sources) if isinstance(reading, Reading) else _several(reading, sources)
        yield Family.of(reading.metric, points)


def read_one(readings: Sequence[Reading[S] | LabelledReading[S]], source: S | None) -> Iterator[Family]:
    """Yield the families of a single source without labels; there are none without it."""
    return iter(()) if source is None else read(readings, [(NO_LABELS, source)])


def _each(reading: Reading[S], sources: Sequence[tuple[Labels, S]]) -> Iterator[Point]:
    for labels, source in sources:
        value = reading.value(source)
        if value is not None:
            yield Point(value, labels)


def _several(reading: LabelledReading[S], sources: Sequence[tuple[Labels, S]]) -> Iterator[Point]:
    for labels, source in sources:
        for name, value in reading.values(source):
            yield Point(value, {**labels, reading.label: name})
