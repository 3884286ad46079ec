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

from conch.domain.metrics.catalog import all_metrics
from conch.domain.metrics.metric import Kind, MetricDefinition

PIECE_POINTS = 32
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class Labels(dict[str, str]):
    """Labels that many points have: their text is made once."""

    __slots__ = ("text",)

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__(labels)
        self.text = label_text(labels)


class Exemplar(NamedTuple):
    """A traced request in a bucket: its trace, its value and the time since the epoch."""

    trace_id: str
    value: float
    time_s: float


class Buckets(NamedTuple):
    """The value of a histogram: upper bounds, the last being infinity, their cumulative counts, and the sum.

    `exemplars` are by the index of their bucket; only OpenMetrics and OTLP have them.
    """

    bounds: tuple[float, ...]
    counts: Sequence[float]
    total: float
    exemplars: Mapping[int, Exemplar] | None = None


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
    def of(cls, name: str, points: Iterable[Point]) -> "Family":
        """Return the family of a metric of the catalogue. Raises KeyError for another name."""
        return cls.defined(all_metrics()[name], points)

    @classmethod
    def defined(cls, metric: MetricDefinition, points: Iterable[Point]) -> "Family":
        """Return the family of a metric that is defined elsewhere."""
        return cls(metric.name, metric.kind, metric.help, points)


def render(families: Iterable[Family]) -> bytes:
    """Render families in order. Those without points are omitted, as in Triton."""
    return b"".join(piece for family in families for piece in pieces(family))


def pieces(family: Family) -> Iterator[bytes]:
    """Render a family in pieces of 32 points; without points there are none."""
    name = family.name
    head = f"# HELP {name} {family.help.translate(HELP_ESCAPES)}\n# TYPE {name} {family.kind}\n"
    points = iter(family.points)
    while some := list(islice(points, PIECE_POINTS)):
        yield (head + "".join([_lines(name, point) for point in some])).encode()
        head = ""


def _lines(name: str, point: Point) -> str:
    value, labels = point
    text = labels.text if isinstance(labels, Labels) else label_text(labels)
    braces = f"{{{text}}}" if text else ""
    more = f"{text}," if text else ""
    if isinstance(value, Buckets):
        bounds = zip(_bounds(value.bounds), value.counts, strict=True)
        lines = [f"{name}_bucket{{{more}le={bound}}} {number_text(count)}\n" for bound, count in bounds]
        count = value.counts[-1] if value.counts else 0
        lines += [f"{name}_sum{braces} {number_text(value.total)}\n", f"{name}_count{braces} {number_text(count)}\n"]
    elif isinstance(value, Quantiles):
        pairs = [(number_text(quantile), number_text(measured)) for quantile, measured in value.values]
        lines = [f'{name}{{{more}quantile="{quantile}"}} {pair}\n' for quantile, pair in pairs]
        lines += [f"{name}_count{braces} {value.number}\n", f"{name}_sum{braces} {number_text(value.total)}\n"]
    else:
        return f"{name}{braces} {number_text(value)}\n"
    return "".join(lines)


@lru_cache(maxsize=256)
def _bounds(bounds: tuple[float, ...]) -> list[str]:
    return [f'"{number_text(bound)}"' for bound in bounds]


def label_text(labels: Mapping[str, str]) -> str:
    """Return labels without braces, sorted by name as in Triton."""
    return ",".join([f'{name}="{labels[name].translate(_LABEL_ESCAPES)}"' for name in sorted(labels)])


def number_text(value: float) -> str:
    """Return a number, without a fraction if it is integral."""
    if isinstance(value, int):
        return str(int(value))
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
