"""The values of which dashboards are made: panels with queries and units, in rows."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

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
