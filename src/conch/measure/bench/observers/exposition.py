"""The text format of Prometheus, as far as counters and gauges need it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})?\s+(\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """One line: a value with labels."""

    name: str
    labels: dict[str, str]
    value: float


def parse_exposition(text: str) -> Iterator[MetricSeries]:
    """Yield the series of a scrape. Lines that are not understood are skipped."""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if found := _SAMPLE.match(line):
            try:
                value = float(found[3])
            except ValueError:
                continue
            labels = {name: _ESCAPE.sub(_unescaped, raw) for name, raw in _LABEL.findall(found[2] or "")}
            yield MetricSeries(found[1], labels, value)


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape[1] == "n" else escape[1]
