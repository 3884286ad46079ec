"""The values of which dashboards are made."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from conch.domain.metrics.metric import Unit
from conch.operate.monitoring.dashboards.measure import Measure

PanelKind: TypeAlias = Literal["lines", "number", "heatmap"]
Color: TypeAlias = Literal["green", "orange", "red"]


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """A query of a panel, and how its series are named: `{{label}}` is a label's value."""

    measure: Measure
    legend: str


def line(measure: Measure, name: str = "") -> PanelQuery:
    """Return a query whose series are named by their labels, after a name."""
    labels = [f"{{{{{label}}}}}" for label in measure.labels if label and label != "le"]
    return PanelQuery(measure, " ".join(filter(None, (name, *labels))) or "all")


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """A panel. All its queries have one unit.

    `range` is what values may be, for tests and axes: None is unbounded. `steps` color values from a threshold on.
    `rows` of a heat map are buckets (`le`) or series; `interval` is the least time between its columns.
    """

    title: str
    description: str
    queries: tuple[PanelQuery, ...]
    kind: PanelKind = "lines"
    range: tuple[float, float | None] | None = None
    steps: tuple[tuple[float, Color], ...] = ()
    width: int = 8
    height: int = 8
    interval: str = ""
    bucket_unit: Unit = ""
    stacked: bool = False

    @property
    def unit(self) -> Unit:
        """The unit of all values."""
        return self.queries[0].measure.unit

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

    `variables` are (name, label, query) beside job and instance, `constants` (name, label, value) that users can edit.
    """

    uid: str
    title: str
    description: str
    rows: tuple[PanelRow, ...]
    variables: tuple[tuple[str, str, str], ...] = ()
    constants: tuple[tuple[str, str, str], ...] = ()
    period: str = "now-1h"

    @property
    def panels(self) -> list[DashboardPanel]:
        """All panels, in order."""
        return [panel for row in self.rows for panel in row.panels]
