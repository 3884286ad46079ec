"""The text format that Prometheus reads, version 0.0.4.

Written here because the client library appends `_total` to the names of counters and writes `1.0` for a count; Triton
does neither, and dashboards look for its names. The tests read what is written back with the library's own parser.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram", "summary"]

_PIECE_LINES = 64
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Point:
    """One line: the value of a name under labels. `suffix` is what a histogram's parts add to the family's name."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """All points of one name, with what they mean."""

    name: str
    kind: Kind
    help: str
    points: list[Point]


def histogram_points(buckets: Iterable[tuple[float, float]], total: float, labels: Mapping[str, str]) -> list[Point]:
    """Return a histogram's points. `buckets` are (upper bound, cumulative count), the last bound being infinity."""
    points = [Point(count, {**labels, "le": _number(bound)}, "_bucket") for bound, count in buckets]
    count = points[-1].value if points else 0
    return [*points, Point(total, labels, "_sum"), Point(count, labels, "_count")]


def summary_points(
    quantiles: Iterable[tuple[float, float]], total: float, count: int, labels: Mapping[str, str]
) -> list[Point]:
    """Return a summary's points. `quantiles` are (share, value)."""
    points = [Point(value, {**labels, "quantile": _number(share)}) for share, value in quantiles]
    return [*points, Point(count, labels, "_count"), Point(total, labels, "_sum")]


def render(families: Iterable[Family]) -> bytes:
    """Write the families in order. One without points is left out, as Triton does."""
    return b"".join(piece for family in families for piece in pieces(family))


def pieces(family: Family) -> Iterator[bytes]:
    """Write a family, some of its points at a time; nothing if it has none."""
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
    # In order of their names, as Triton writes them, except that a bucket's bound or a quantile comes last.
    names = sorted(labels, key=lambda name: (name in ("le", "quantile"), name))
    return "{" + ",".join(f'{name}="{labels[name].translate(_LABEL_ESCAPES)}"' for name in names) + "}"


def _number(value: float) -> str:
    """Write whole numbers as such: a count of microseconds has no fraction."""
    if isinstance(value, int):
        return str(int(value))
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
