"""OpenMetrics 1.0: the text format with exemplars.

Its counters must end with `_total`. Those of Triton do not; they keep their names, for dashboards, and have the type
`unknown`. Bounds of buckets are written as in Go (`1.0`), so that every server writes the same.
"""

from collections.abc import Iterable, Iterator
from math import inf

from conch.domain.exposition import HELP_ESCAPES, Exemplar, Family, number_text, pieces_below

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
        yield from pieces_below(head, family, _float_text, _exemplar_text)
    yield b"# EOF\n"


def _float_text(value: float) -> str:
    return number_text(value) if value == inf else repr(float(value))


def _exemplar_text(exemplar: Exemplar) -> str:
    return f' # {{trace_id="{exemplar.trace_id}"}} {number_text(exemplar.value)} {exemplar.time_s:.3f}'
