"""The parts of a request's time: segments with one cause each, without gaps."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Table: TypeAlias = np.ndarray[Any, Any]
Interval: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TimePart:
    """A time of a request with one cause. `batch` is the number of the batch behind which it waits or in which it runs.

    `step` is the nested request that explains a part whose cause is `NESTED`.
    """

    cause: str
    start: int
    end: int
    model: str
    batch: int = 0
    step: "RequestParts | None" = None

    @property
    def ns(self) -> int:
        """The duration."""
        return self.end - self.start

    def between(self, start: int, end: int, cause: str = "") -> "TimePart":
        """Return a piece of it, by default with its cause."""
        return TimePart(cause or self.cause, start, end, self.model, self.batch, self.step)


@dataclass(frozen=True, slots=True)
class RequestParts:
    """The parts of a request, in order and without gaps, so that they sum to the whole. `row` is that of its table."""

    row: Any
    model: str
    start: int
    end: int
    parts: Sequence[TimePart]

    @property
    def number(self) -> int:
        """The number of the request."""
        return int(self.row["number"])

    @property
    def ns(self) -> int:
        """The duration."""
        return self.end - self.start

    def walk(self, depth: int = 0) -> Iterator[tuple[int, "RequestParts"]]:
        """Yield this request and the nested ones of its critical path, with their depths."""
        yield depth, self
        for part in self.parts:
            if part.step is not None:
                yield from part.step.walk(depth + 1)

    def leaves(self) -> Iterator[TimePart]:
        """Yield the parts, with those of nested requests in their places."""
        for part in self.parts:
            if part.step is None:
                yield part
            else:
                yield from part.step.leaves()


def carve(
    parts: Iterable[TimePart], intervals: Iterable[Interval], cause: str, only: Collection[str]
) -> list[TimePart]:
    """Give a cause to what intervals cover of the parts whose cause is one of `only`."""
    carved = list(parts)
    for start, end in intervals:
        pieces = list[TimePart]()
        for part in carved:
            first, last = max(part.start, start), min(part.end, end)
            if part.cause not in only or first >= last:
                pieces.append(part)
                continue
            bounds = ((part.start, first, ""), (first, last, cause), (last, part.end, ""))
            pieces += (part.between(low, high, name) for low, high, name in bounds if high > low)
        carved = pieces
    return carved


def clipped(parts: Iterable[TimePart], start: int, end: int) -> list[TimePart]:
    """Return what is between two times."""
    return [
        part.between(max(part.start, start), min(part.end, end))
        for part in parts
        if part.end > start and part.start < end
    ]


def joined(parts: Iterable[TimePart]) -> list[TimePart]:
    """Join neighbours with the same cause, model and batch."""
    joined = list[TimePart]()
    for part in parts:
        last = joined[-1] if joined else None
        if last and last.step is None and (last.cause, last.model, last.batch) == (part.cause, part.model, part.batch):
            joined[-1] = last.between(last.start, part.end)
        elif part.ns > 0:
            joined.append(part)
    return joined
