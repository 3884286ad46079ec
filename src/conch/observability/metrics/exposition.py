"""Prometheus' text format, version 0.0.4.

Not by the client library, because that appends `_total` to the names of counters and writes `1.0` for a count, unlike
Triton, whose names dashboards use. The tests use the library's parser.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from conch.metric_catalog.metric import Kind

_PIECE_LINES = 64
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Point:
    """One line: a value with labels. `suffix` is appended to the family's name, as in histograms."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """All points of one name."""

    name: str
    kind: Kind
    help: str
    points: list[Point]


def histogram_points(buckets: Iterable[tuple[float, float]], total: float, labels: Mapping[str, str]) -> list[Point]:
    """Return a histogram's points. `buckets` are (upper bound, cumulative count); the last bound is infinity."""
    points = [Point(count, {**labels, "le": _number(bound)}, "_bucket") for bound, count in buckets]
    count = points[-1].value if points else 0
    return [*points, Point(total, labels, "_sum"), Point(count, labels, "_count")]


def summary_points(
    quantiles: Iterable[tuple[float, float]], total: float, count: int, labels: Mapping[str, str]
) -> list[Point]:
    """Return a summary's points. `quantiles` are (quantile, value)."""
    points = [Point(value, {**labels, "quantile": _number(quantile)}) for quantile, value in quantiles]
    return [*points, Point(count, labels, "_count"), Point(total, labels, "_sum")]


def render(families: Iterable[Family]) -> bytes:
    """Render families in order. Those without points are omitted, as in Triton."""
    return b"".join(piece for family in families for piece in pieces(family))


def pieces(family: Family) -> Iterator[bytes]:
    """Render a family in pieces of 64 lines; without points there are none."""
    if family.points:
        lines = _lines(family)
        while piece := "".join(islice(lines, _PIECE_LINES)):
            yield piece.encode()


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n"
    yield f"# TYPE {family.name} {family.kind}\n"
    for point in family.points:
        yield f"{family.name}{point.suffix}{_labels(point.labels)} {_number(point.value)}\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    # Sorted by name, as in Triton, but `le` and `quantile` are last.
    names = sorted(labels, key=lambda name: (name in ("le", "quantile"), name))
    return "{" + ",".join(f'{name}="{labels[name].translate(_LABEL_ESCAPES)}"' for name in names) + "}"


def _number(value: float) -> str:
    """Return a number, without a fraction if it is integral."""
    if isinstance(value, int):
        return str(int(value))
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
