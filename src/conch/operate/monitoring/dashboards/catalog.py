"""All dashboards, as `dashboards.yml` declares them: panels with queries and units, in rows."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from conch.base.yaml_documents import load_document
from conch.domain.metrics.catalog import all_metrics
from conch.operate.monitoring.rules.thresholds import Thresholds
from conch.operate.monitoring.translate.dialects import LABELS
from conch.operate.monitoring.translate.document import Translator

PanelKind: TypeAlias = Literal["lines", "number", "heatmap"]
Variables: TypeAlias = tuple[tuple[str, str, str], ...]  # name, label, and query or value


class PanelQuery(NamedTuple):
    """A query of a panel, and how its series are named: `{{label}}` is a label's value."""

    legend: str
    expr: str

    @property
    def is_of_buckets(self) -> bool:
        """Whether the series are the buckets of a histogram."""
        return self.legend == "{{le}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardPanel:
    """A panel. All its queries have one unit.

    `range` is what values may be, for tests and axes: None is unbounded. `steps` color values from a threshold on.
    Rows of a heat map are buckets (`le`) or series; `interval` is the least time between its columns.
    """

    title: str
    description: str
    queries: tuple[PanelQuery, ...]
    unit: str
    kind: PanelKind = "lines"
    range: tuple[float, float | None] | None = None
    steps: tuple[tuple[float, Literal["green", "orange", "red"]], ...] = ()
    width: int = 8
    height: int = 8
    interval: str = ""
    bucket_unit: str = ""
    stacked: bool = False

    @property
    def bounds(self) -> tuple[float, float | None]:
        """The least and the greatest value that a series may have."""
        if self.range is not None:
            return self.range
        return (0, 1) if self.unit == "ratio" else (0, 100) if self.unit == "percent" else (0, None)


@dataclass(frozen=True, slots=True)
class PanelRow:
    """A titled row of panels."""

    title: str
    panels: tuple[DashboardPanel, ...]


@dataclass(frozen=True, slots=True)
class GrafanaDashboard:
    """A dashboard. `uid` is its stable id in Grafana.

    `variables` are (name, label, query) after job and instance, `constants` (name, label, value) that users can edit.
    """

    uid: str
    title: str
    description: str
    rows: tuple[PanelRow, ...]
    variables: Variables = ()
    constants: Variables = ()
    period: str = "now-1h"

    @property
    def panels(self) -> list[DashboardPanel]:
        """All panels, in order."""
        return [panel for row in self.rows for panel in row.panels]


DcgmNames: TypeAlias = Literal["legacy", "4.7"]

_FILE = Path(__file__).with_name("dashboards.yml")
_SELECTOR = re.compile(r"(?P<series>[\w:]+)\{(?P<conditions>[^}]*)\}")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")
# Labels of metrics → variables of dashboards.
_VARIABLES = {
    "model": "model",
    "model_name": "model",
    "version": "version",
    "uuid": "gpu",
    "UUID": "gpu",
    "gpu_uuid": "gpu",
}


def all_dashboards(names: DcgmNames = "legacy") -> tuple[GrafanaDashboard, ...]:
    """Return the dashboards, with DCGM's names before or since 4.7."""
    document = load_document(_FILE.read_text(encoding="utf-8"))
    return tuple(_dashboard(declared, names) for declared in document.value)


def _dashboard(declared: dict[str, Any], names: DcgmNames) -> GrafanaDashboard:
    rows = (
        PanelRow(_with_names(row["title"], names), tuple(_panel(panel, names) for panel in row["panels"]))
        for row in declared["rows"]
    )
    return GrafanaDashboard(
        declared["uid"],
        declared["title"],
        _with_names(declared["description"], names),
        tuple(rows),
        tuple(map(tuple, declared["variables"])),
        tuple((name, label, str(_number(value))) for name, label, value in declared.get("constants", ())),
        **({"period": declared["period"]} if "period" in declared else {}),
    )


def _panel(declared: dict[str, Any], names: DcgmNames) -> DashboardPanel:
    fields = dict(declared)
    current = fields.pop("unit_since_4.7", fields["unit"])
    unit = current if names == "4.7" else fields["unit"]
    keep_unit = current == fields["unit"]
    queries = [_query(legend, text, names, keep_unit=keep_unit) for legend, text in fields.pop("queries").items()]
    fields |= {"queries": tuple(queries), "unit": "" if unit == "count" else unit}
    fields |= {"steps": tuple((_number(at), color) for at, color in fields.get("steps", {}).items())}
    return DashboardPanel(**fields | ({"range": tuple(fields["range"])} if "range" in fields else {}))


def _number(value: float | str) -> float:
    """Return a number that may be given as the name of an alert's threshold, which stands for its default."""
    return getattr(Thresholds(), value) if isinstance(value, str) else value


def _query(legend: str, text: str, names: DcgmNames, *, keep_unit: bool) -> PanelQuery:
    expr = _SELECTOR.sub(_selector, text)
    if names == "legacy" or "DCGM_" not in expr:
        return PanelQuery(legend, expr)
    for label in LABELS:
        if "dcgm-legacy" in label and "dcgm-4.7" in label:
            legend = legend.replace(f"{{{{{label['dcgm-legacy']}}}}}", f"{{{{{label['dcgm-4.7']}}}}}")
    return PanelQuery(legend, Translator("dcgm-legacy", "dcgm-4.7").query(expr, keep_unit=keep_unit))


def _selector(selector: "re.Match[str]") -> str:
    """Return a selector with the conditions on variables for the labels that its metric has."""
    metrics = all_metrics()
    metric = metrics.get(selector["series"]) or metrics[_SUFFIX.sub("", selector["series"])]
    conditions = ['job=~"$job"', 'instance=~"$instance"']
    conditions += [f'{label}=~"${_VARIABLES[label]}"' for label in metric.labels if label in _VARIABLES]
    conditions += [selector["conditions"]] if selector["conditions"] else []
    return f"{selector['series']}{{{', '.join(conditions)}}}"


def _with_names(text: str, names: DcgmNames) -> str:
    return text.replace("{dcgm_names}", names)
