"""Prometheus' text format, version 0.0.4.

Not by the client library, because that appends `_total` to the names of counters and writes `1.0` for a count, unlike
Triton, whose names dashboards use. The tests use the library's parser.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from conch.domain.metrics.catalog import all_metrics
from conch.domain.metrics.metric import Kind, MetricDefinition

_PIECE_POINTS = 32
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
    return pieces_below(head, family, number_text)


def pieces_below(
    head: str,
    family: Family,
    label_number: Callable[[float], str],
    exemplar: Callable[[Exemplar], str] | None = None,
) -> Iterator[bytes]:
    """Render the points of a family below its head, in pieces of 32.

    `label_number` writes bounds of buckets and quantiles, `exemplar` what follows the count of a bucket that has one.
    """
    points = iter(family.points)
    while some := list(islice(points, _PIECE_POINTS)):
        yield (head + "".join([_lines(family.name, point, label_number, exemplar) for point in some])).encode()
        head = ""


def _lines(
    name: str, point: Point, label_number: Callable[[float], str], exemplar: Callable[[Exemplar], str] | None
) -> str:
    value, labels = point
    text = labels.text if isinstance(labels, Labels) else label_text(labels)
    braces = f"{{{text}}}" if text else ""
    more = f"{text}," if text else ""
    if isinstance(value, Buckets):
        bounds = zip(_bounds(value.bounds, label_number), value.counts, strict=True)
        lines = [f"{name}_bucket{{{more}le={bound}}} {number_text(count)}" for bound, count in bounds]
        if exemplar is not None and value.exemplars is not None:
            for index, traced in value.exemplars.items():
                lines[index] += exemplar(traced)
        count = value.counts[-1] if value.counts else 0
    elif isinstance(value, Quantiles):
        lines = [
            f'{name}{{{more}quantile="{label_number(which)}"}} {number_text(quantile)}'
            for which, quantile in value.values
        ]
        count = value.number
    else:
        return f"{name}{braces} {number_text(value)}\n"
    lines += [f"{name}_sum{braces} {number_text(value.total)}", f"{name}_count{braces} {number_text(count)}", ""]
    return "\n".join(lines)


@lru_cache(maxsize=512)
def _bounds(bounds: tuple[float, ...], label_number: Callable[[float], str]) -> list[str]:
    return [f'"{label_number(bound)}"' for bound in bounds]


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
