"""The same values under the names, units and labels of all dialects, as samples of an hour for Prometheus."""

import math
from collections.abc import Iterator
from dataclasses import replace

from conch.domain.metrics.metric import UNITS
from conch.operate.monitoring import promql
from conch.operate.monitoring.translate.dialects import DIALECTS, LABELS, Dialect, DialectSeries, correspondences

START, STEP_S, SAMPLES = 1_700_000_000, 15, 240
AT = START + 3000
GPUS = ("0", "1")
_MAGNITUDES = {"data": 6e10, "frequency": 1.5e9, "temperature": 70, "power": 300}  # of gauges, in base units
# Upper bounds of histograms in base units, and the share of observations at most as large.
_BUCKETS = ((0.1, 0.2), (0.5, 0.5), (1.0, 0.8), (5.0, 0.95), (math.inf, 1.0))


def exposition() -> str:
    """Return all samples in OpenMetrics form. All counters count alike, and all gauges have the same values."""
    lines: list[str] = []
    written: set[tuple[str, Dialect, tuple[tuple[str, str], ...]]] = set()
    for row in sorted(correspondences(), key=lambda row: row.kind != "histogram"):
        for dialect, series in row.names.items():
            if (series.name, dialect, series.only) not in written:
                names = [series.name]
                if row.kind == "histogram":
                    names += [f"{series.name}_sum", f"{series.name}_count"]
                written.update((name, dialect, series.only) for name in names)
                lines += _lines(dialect, series, row.kind)
    return "\n".join(sorted(lines, key=lambda line: line.split("{")[0])) + "\n# EOF\n"


def labels_of(dialect: Dialect, gpu: str) -> dict[str, str]:
    """Return the labels of a dialect's series of a GPU or model."""
    labels = {row[dialect]: f"{index}-{gpu}" for index, row in enumerate(LABELS) if dialect in row}
    return {**labels, "job": dialect, **({"gpu": gpu} if "gpu" in labels else {})}


def renamed(labels: dict[str, str], source: Dialect, target: Dialect) -> dict[str, str]:
    """Return the labels that both dialects have, under the target's names."""
    shared = {row[source]: row[target] for row in LABELS if source in row and target in row}
    return {shared[label]: value for label, value in labels.items() if label in shared}


def in_job(node: promql.Node, dialect: Dialect) -> promql.Node:
    """Return a query that selects the series of one dialect only: some share names."""

    def restricted(node: promql.Node) -> promql.Node:
        if not isinstance(node, promql.Selector):
            return node
        return replace(node, matchers=(*node.matchers, promql.LabelMatcher("job", "=~", f"{dialect}|node")))

    return promql.rewrite(node, restricted)


def _lines(dialect: Dialect, series: DialectSeries, kind: str) -> Iterator[str]:
    factor = float(UNITS[series.unit].factor)
    for gpu in GPUS:
        labels = {**labels_of(dialect, gpu), **dict(series.only)}
        for index in range(SAMPLES):
            at = START + index * STEP_S
            count = 1000 + (3 + int(gpu)) * index
            if kind == "histogram":
                for bound, share in _BUCKETS:
                    le = "+Inf" if bound == math.inf else repr(bound / factor)
                    yield _line(f"{series.name}_bucket", {**labels, "le": le}, count * share, at)
                yield _line(f"{series.name}_sum", labels, count / factor, at)
                yield _line(f"{series.name}_count", labels, count, at)
            elif kind == "counter":
                yield _line(series.name, labels, count / factor, at)
            else:
                share = 0.4 + 0.3 * math.sin(index / 9) + int(gpu) / 10
                magnitude = _MAGNITUDES.get(UNITS[series.unit].dimension, 1)
                yield _line(series.name, labels, share * magnitude / factor, at)


def _line(name: str, labels: dict[str, str], value: float, at: int) -> str:
    inside = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"{name}{{{inside}}} {value!r} {at}"


assert set(DIALECTS) == {dialect for row in correspondences() for dialect in row.names}
