"""OpenMetrics 1.0: the text format with exemplars.

Its counters must end with `_total`. Those of Triton do not; they keep their names, for dashboards, and have the type
`unknown`. Bounds of buckets are written as in Go (`1.0`), so that every server writes the same.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice

from conch.domain.exposition import (
    HELP_ESCAPES,
    PIECE_POINTS,
    Buckets,
    Exemplar,
    Family,
    Labels,
    Point,
    Quantiles,
    label_text,
    number_text,
)

CONTENT_TYPE = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
_MEDIA_TYPE = "application/openmetrics-text"
_VERSIONS = ("", "1.0.0", "0.0.1")


def is_preferred(accept: str) -> bool:
    """Return whether a header `Accept` prefers this format to the text format of Prometheus."""
    ours = text = 0.0
    for entry in accept.split(","):
        media_type, *parameters = [part.strip() for part in entry.split(";")]
        given = dict(part.partition("=")[::2] for part in parameters)
        quality = _quality(given.get("q", "1"))
        if media_type == _MEDIA_TYPE and given.get("version", "").strip('"') in _VERSIONS:
            ours = max(ours, quality)
        elif media_type == "text/plain":
            text = max(text, quality)
    return ours > 0 and ours >= text


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def openmetrics_pieces(families: Iterable[Family]) -> Iterator[bytes]:
    """Render families in pieces of 32 points, and the end mark."""
    for family in families:
        name, kind = family.name, family.kind
        base = name.removesuffix("_total") if kind == "counter" else name
        shown = "unknown" if kind == "counter" and base == name else kind
        text = family.help.translate(HELP_ESCAPES).replace('"', r"\"")
        head = f"# HELP {base} {text}\n# TYPE {base} {shown}\n"
        points = iter(family.points)
        while some := list(islice(points, PIECE_POINTS)):
            yield (head + "".join([_lines(name, point) for point in some])).encode()
            head = ""
    yield b"# EOF\n"


def _lines(name: str, point: Point) -> str:
    value, labels = point
    text = labels.text if isinstance(labels, Labels) else label_text(labels)
    braces = f"{{{text}}}" if text else ""
    more = f"{text}," if text else ""
    if isinstance(value, Buckets):
        count = value.counts[-1] if value.counts else 0
        exemplars = value.exemplars or {}
        lines = [
            f"{name}_bucket{{{more}le={bound}}} {number_text(number)}{_exemplar(exemplars.get(index))}\n"
            for index, (bound, number) in enumerate(zip(_bounds(value.bounds), value.counts, strict=True))
        ]
    elif isinstance(value, Quantiles):
        count = value.number
        lines = [
            f'{name}{{{more}quantile="{float(which)!r}"}} {number_text(quantile)}\n' for which, quantile in value.values
        ]
    else:
        return f"{name}{braces} {number_text(value)}\n"
    lines += [f"{name}_sum{braces} {number_text(value.total)}\n", f"{name}_count{braces} {number_text(count)}\n"]
    return "".join(lines)


@lru_cache(maxsize=256)
def _bounds(bounds: tuple[float, ...]) -> list[str]:
    return [f'"{number_text(bound) if bound == float("inf") else repr(float(bound))}"' for bound in bounds]


def _exemplar(exemplar: Exemplar | None) -> str:
    if exemplar is None:
        return ""
    return f' # {{trace_id="{exemplar.trace_id}"}} {number_text(exemplar.value)} {exemplar.time_s:.3f}'
