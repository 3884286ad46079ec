"""Prometheus' text format, version 0.0.4.

Not by the client library, because that appends `_total` to the names of counters and writes `1.0` for a count, unlike
Triton, whose names dashboards use. The tests use the library's parser.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from conch.metric_catalog.metric import Kind, MetricDefinition

_PIECE_POINTS = 32
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Labels(dict[str, str]):
    """Labels that many points have: their text is made once."""

    __slots__ = ("text",)

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__(labels)
        self.text = _text(labels)


class Buckets(NamedTuple):
    """The value of a histogram: upper bounds, the last being infinity, their cumulative counts, and the sum."""

    bounds: tuple[float, ...]
    counts: Sequence[float]
    total: float


class Quantiles(NamedTuple):
    """The value of a summary: quantiles with their values, the sum and the number of measurements."""

    values: Sequence[tuple[float, float]]
    total: float
    number: int


Value: TypeAlias = float | Buckets | Quantiles


class Point(NamedTuple):
    """A value with its labels: one line, or several of a histogram or a summary."""

    value: Value
    labels: Mapping[str, str] = _NO_LABELS


@dataclass(frozen=True, slots=True)
class Family:
    """All points of one name. They may be an iterator, which is read once."""

    name: str
    kind: Kind
    help: str
    points: Iterable[Point]

    @classmethod
    def of(cls, metric: MetricDefinition, points: Iterable[Point]) -> "Family":
        """Return the family of a metric of the catalogue."""
        return cls(metric.name, metric.kind, metric.help, points)


def render(families: Iterable[Family]) -> bytes:
    """Render families in order. Those without points are omitted, as in Triton."""
    return b"".join(piece for family in families for piece in pieces(family))


def pieces(family: Family) -> Iterator[bytes]:
    """Render a family in pieces of 32 points; without points there are none."""
    name = family.name
    head = f"# HELP {name} {family.help.translate(_HELP_ESCAPES)}\n# TYPE {name} {family.kind}\n"
    points = iter(family.points)
    while some := list(islice(points, _PIECE_POINTS)):
        yield (head + "".join([_lines(name, point) for point in some])).encode()
        head = ""


def _lines(name: str, point: Point) -> str:
    value, labels = point
    text = labels.text if isinstance(labels, Labels) else _text(labels)
    if isinstance(value, Buckets):
        prefix = f"{name}_bucket{{{text},le=" if text else f"{name}_bucket{{le="
        buckets = zip(_bounds(value.bounds), value.counts, strict=True)
        lines = "".join([f"{prefix}{bound}}} {_number(count)}\n" for bound, count in buckets])
        braces = f"{{{text}}}" if text else ""
        count = value.counts[-1] if value.counts else 0
        return f"{lines}{name}_sum{braces} {_number(value.total)}\n{name}_count{braces} {_number(count)}\n"
    if isinstance(value, Quantiles):
        prefix = f"{name}{{{text},quantile=" if text else f"{name}{{quantile="
        lines = "".join([f'{prefix}"{_number(quantile)}"}} {_number(found)}\n' for quantile, found in value.values])
        braces = f"{{{text}}}" if text else ""
        return f"{lines}{name}_count{braces} {value.number}\n{name}_sum{braces} {_number(value.total)}\n"
    return f"{name}{{{text}}} {_number(value)}\n" if text else f"{name} {_number(value)}\n"


@lru_cache(maxsize=256)
def _bounds(bounds: tuple[float, ...]) -> list[str]:
    return [f'"{_number(bound)}"' for bound in bounds]


def _text(labels: Mapping[str, str]) -> str:
    """Return labels without braces, sorted by name as in Triton."""
    return ",".join([f'{name}="{labels[name].translate(_LABEL_ESCAPES)}"' for name in sorted(labels)])


def _number(value: float) -> str:
    """Return a number, without a fraction if it is integral."""
    if isinstance(value, int):
        return str(int(value))
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
