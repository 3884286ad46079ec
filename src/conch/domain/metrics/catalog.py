"""All metrics: the table `metrics.csv`, and the fields of DCGM.

An area is what has the metrics: Triton's names, the server, language models, limits, accelerators, other commands.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import cast

from conch.base.files.tables import table_rows
from conch.domain.metrics.metric import Kind, MetricDefinition, conversion

LEGACY_LABELS = ("Hostname", "DCGM_FI_DRIVER_VERSION")
CURRENT_LABELS = ("hostname", "DCGM_FI_SYSTEM_DRIVER_VERSION")
_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName")
_PARTS = ("GPU_I_PROFILE", "GPU_I_ID", "container", "namespace", "pod")
# How help texts name units that a legacy name does not tell.
_UNIT_NAMES = {
    "megahertz": "MHz",
    "percent": "percent",
    "mebibytes": "MiB",
    "millijoules": "mJ",
    "megabytes_per_second": "MB/s",
    "nanoseconds": "ns",
    "celsius": "°C",
    "watts": "W",
}


@dataclass(frozen=True, slots=True)
class DcgmField:
    """A field of DCGM: its metric before 4.7 and since, which are the same where the name did not change.

    The legacy value is the current one times `legacy_factor`. `legacy_id` and `current_id` are DCGM's numbers, 0 for
    fields of dcgm-exporter's own. `legacy_default` and `current_default`: whether it is exposed unless a counter file
    says otherwise.
    """

    legacy_id: int
    current_id: int
    legacy: MetricDefinition
    current: MetricDefinition
    legacy_factor: float = 1.0
    legacy_default: bool = True
    current_default: bool = True


@cache
def dcgm_fields() -> tuple[DcgmField, ...]:
    """Return all fields."""
    return tuple(map(_field, table_rows(__file__, "dcgm.csv")))


def _field(row: dict[str, str]) -> DcgmField:
    if row["legacy"] == row["current"]:
        legacy = current = _metric(row, "current", (*LEGACY_LABELS, *CURRENT_LABELS))
    else:
        legacy, current = _metric(row, "legacy", LEGACY_LABELS), _metric(row, "current", CURRENT_LABELS)
    return DcgmField(
        int(row["legacy_id"]),
        int(row["current_id"]),
        legacy,
        current,
        float(conversion(row["current_unit"], row["legacy_unit"])),
        row["exposed"] == "both",
        row["exposed"] in ("both", "current"),
    )


def _metric(row: dict[str, str], generation: str, version_labels: tuple[str, ...]) -> MetricDefinition:
    unit, text = row[f"{generation}_unit"], row["help"]
    text = f"{text[:-1]}, in {_UNIT_NAMES[unit]}." if unit in _UNIT_NAMES else text
    labels = (*_LABELS, *row["extra_labels"].split())
    kind = cast("Kind", row["kind"])
    return MetricDefinition(row[generation], kind, text, labels, unit, (*version_labels, *_PARTS))


@cache
def fields_by_name() -> dict[str, DcgmField]:
    """Return the fields by both names."""
    return {name: field for field in dcgm_fields() for name in (field.legacy.name, field.current.name)}


@cache
def optional_names() -> frozenset[str]:
    """Return the names that neither this exporter nor dcgm-exporter exposes unless a counter file names them."""
    shown = {field.legacy.name for field in dcgm_fields() if field.legacy_default}
    return (
        frozenset(fields_by_name()) - shown - {field.current.name for field in dcgm_fields() if field.current_default}
    )


@cache
def areas() -> Mapping[str, tuple[MetricDefinition, ...]]:
    """Return the metrics of each area, in their order."""
    by_area: dict[str, list[MetricDefinition]] = {}
    for row in table_rows(__file__, "metrics.csv"):
        metric = MetricDefinition(
            row["name"],
            cast("Kind", row["kind"]),
            row["help"],
            tuple(row["labels"].split()),
            row["unit"],
            tuple(row["optional_labels"].split()),
        )
        by_area.setdefault(row["area"], []).append(metric)
    fields = dcgm_fields()
    by_area["dcgm"] = list(dict.fromkeys((*(field.legacy for field in fields), *(field.current for field in fields))))
    return MappingProxyType({area: tuple(metrics) for area, metrics in by_area.items()})


@cache
def all_metrics() -> Mapping[str, MetricDefinition]:
    """Return all metrics by name, in their order. Raises ValueError for a name that is defined twice."""
    by_name: dict[str, MetricDefinition] = {}
    for area, metrics in areas().items():
        for metric in metrics:
            if metric.name in by_name:
                raise ValueError(f"{area}: the metric {metric.name} is defined elsewhere too")
            by_name[metric.name] = metric
    return MappingProxyType(by_name)
