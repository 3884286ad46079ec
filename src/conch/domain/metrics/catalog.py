"""All metrics: the table `metrics.csv`, and the fields of DCGM.

An area is what has the metrics: Triton's names, the server, language models, limits, accelerators, other commands.
"""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import cast

from conch.domain.metrics.dcgm import dcgm_fields
from conch.domain.metrics.metric import Kind, MetricDefinition

_FILE = Path(__file__).with_name("metrics.csv")


@cache
def areas() -> Mapping[str, tuple[MetricDefinition, ...]]:
    """Return the metrics of each area, in their order."""
    found: dict[str, list[MetricDefinition]] = {}
    with _FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            metric = MetricDefinition(
                row["name"],
                cast("Kind", row["kind"]),
                row["help"],
                tuple(row["labels"].split()),
                row["unit"],
                tuple(row["optional_labels"].split()),
            )
            found.setdefault(row["area"], []).append(metric)
    fields = dcgm_fields()
    found["dcgm"] = list(dict.fromkeys((*(field.legacy for field in fields), *(field.current for field in fields))))
    return MappingProxyType({area: tuple(metrics) for area, metrics in found.items()})


@cache
def all_metrics() -> Mapping[str, MetricDefinition]:
    """Return all metrics by name, in their order. Raises ValueError for a name that is defined twice."""
    found: dict[str, MetricDefinition] = {}
    for area, metrics in areas().items():
        for metric in metrics:
            if metric.name in found:
                raise ValueError(f"{area}: the metric {metric.name} is defined elsewhere too")
            found[metric.name] = metric
    return MappingProxyType(found)
