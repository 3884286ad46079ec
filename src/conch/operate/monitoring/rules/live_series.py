"""The series of a proof as they would be scraped while it happens: for drills of alerts."""

import re

from conch.operate.monitoring.promql import Selector, parse
from conch.operate.monitoring.rules.known_metrics import MetricTable
from conch.operate.monitoring.rules.rule import InputSeries, Proof

DRILL_NAME = "conch-drill"

_NUMBER = r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_SEGMENT = re.compile(rf"(?P<first>_|{_NUMBER})(?P<step>(?=[+-]){_NUMBER})?(?:x(?P<count>\d+))?")
_OF_TARGET = ("job", "instance")  # Prometheus adds the drill's
_SUBJECTS = ("model", "model_name", "name", "source", "target", "vendor")  # named in the messages of alerts
_DRILL_LABEL = {"drill": "true"}


def sample_values(values: str) -> list[float | None]:
    """Return the samples of promtool's notation, such as `0+5x3 _x2 7`; None for a missing one."""
    found: list[float | None] = []
    for word in values.split():
        match = _SEGMENT.fullmatch(word)
        if match is None:
            raise ValueError(f"'{word}' is not a sequence of samples")
        count = int(match["count"] or 0)
        if match["first"] == "_":
            found += [None] * max(count, 1)
        else:
            first, step = float(match["first"]), float(match["step"] or 0)
            found += [first + step * index for index in range(count + 1)]
    return found


def live_exposition(proof: Proof, elapsed_s: float, table: MetricTable) -> str:
    """Return the text of a scrape at a time after the start of a proof. Its series are those of a drill."""
    lines = []
    for series in proof.series:
        value = _value(series, elapsed_s / proof.interval_s, table)
        if value is not None:
            lines.append(f"{live_name(series)} {value!r}\n")
    return "".join(lines)


def can_be_scraped(proof: Proof) -> bool:
    """Return whether a target can expose the series of a proof: `up` is Prometheus's own."""
    return not any(_selector(series).metric == "up" for series in proof.series)


def _selector(series: InputSeries) -> Selector:
    selector = parse(series.series)
    assert isinstance(selector, Selector)
    return selector


def live_name(series: InputSeries) -> str:
    """Return the name of a series with the labels of a drill: `drill`, and the name of what does not exist."""
    selector = _selector(series)
    labels = {matcher.label: matcher.value for matcher in selector.matchers if matcher.label not in _OF_TARGET}
    labels |= {name: DRILL_NAME for name in _SUBJECTS if name in labels} | _DRILL_LABEL
    pairs = [f'{name}="{value}"' for name, value in labels.items()]
    return f"{selector.metric}{{{','.join(pairs)}}}"


def _value(series: InputSeries, position: float, table: MetricTable) -> float | None:
    """Return the value between two samples: counters grow evenly, gauges keep their value."""
    samples = sample_values(series.values)
    index = min(int(position), len(samples) - 1)
    value = samples[index]
    name = _selector(series).metric or ""
    metric = table.find(name)
    if value is None or not (metric.is_counter if metric else name.endswith("_total")):
        return value
    low = max(min(index, len(samples) - 2), 0)
    before, after = samples[low], samples[min(low + 1, len(samples) - 1)]
    slope = after - before if before is not None and after is not None else 0
    return value + slope * (position - index)
