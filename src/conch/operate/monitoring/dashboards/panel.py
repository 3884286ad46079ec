"""The values of which dashboards are made: queries with units, built from the definitions of metrics, and panels."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, TypeAlias, TypedDict, Unpack

from conch.domain.metrics.metric import MetricDefinition, Unit
from conch.operate.monitoring.units import UNITS

_WINDOW = "$__rate_interval"
# Labels that dashboards have a variable for.
_VARIABLES = {
    "model": "model",
    "model_name": "model",
    "version": "version",
    "uuid": "gpu",
    "UUID": "gpu",
    "gpu_uuid": "gpu",
}
_RATE_UNITS: dict[Unit, Unit] = {
    "bytes": "bytes_per_second",
    "tokens": "tokens_per_second",
    "joules": "watts",
    "requests_per_second": "",
}
# Labels that distinguish models, or devices, in legends.
_SUBJECTS = ("model", "model_name", "version", "gpu", "device")


@dataclass(frozen=True, slots=True)
class Measure:
    """A query, the unit of its values, the labels that its series have, and a name for the legend.

    Prometheus renames a metric's own labels `job` and `instance` to `exported_job` and `exported_instance`.
    """

    expr: str
    unit: Unit
    labels: tuple[str, ...] = ()
    name: str = ""

    def named(self, name: str) -> "Measure":
        """Return the query with a name."""
        return replace(self, name=name)

    @property
    def legend(self) -> str:
        """How Grafana names the series: the name and the values of the labels."""
        labels = [f"{{{{{label}}}}}" for label in self.labels if label and label != "le"]
        return " ".join(filter(None, (self.name, *labels))) or "all"

    def times(self, factor: Fraction, unit: Unit) -> "Measure":
        """Return the values in another unit."""
        constant = f"/ {factor.denominator}" if factor.numerator == 1 else f"* {float(factor):.15g}"
        return self if factor == 1 else replace(self, expr=f"{self.expr} {constant}", unit=unit)

    def displayable(self) -> "Measure":
        """Return the values in base units if Grafana does not have theirs."""
        form = UNITS[self.unit]
        base = next(unit for unit, other in UNITS.items() if other.dimension == form.dimension and other.factor == 1)
        return self if form.grafana else self.times(form.factor, base)


def selector(metric: MetricDefinition, suffix: str = "", where: str = "") -> str:
    """Return the selector of a metric's series that the variables of the dashboard choose."""
    conditions = ['job=~"$job"', 'instance=~"$instance"']
    conditions += [f'{label}=~"${_VARIABLES[label]}"' for label in metric.labels if label in _VARIABLES]
    conditions += [where] if where else []
    return f"{metric.name}{suffix}{{{', '.join(conditions)}}}"


def subjects(metric: MetricDefinition) -> tuple[str, ...]:
    """Return the labels that distinguish the series of a metric by default."""
    return tuple(label for label in metric.labels if label in _SUBJECTS)


def gauge(
    metric: MetricDefinition, *by: str, operator: str = "sum", where: str = "", unit: Unit | None = None
) -> Measure:
    """Return the value of a gauge, aggregated by labels: by default those of the model or device."""
    labels = by or subjects(metric)
    expr = _aggregated(operator, labels, selector(metric, where=where))
    return Measure(expr, _or(unit, metric.unit), labels).displayable()


def rate(
    metric: MetricDefinition, *by: str, unit: Unit | None = None, where: str = "", suffix: str = "", window: str = ""
) -> Measure:
    """Return the increase of a counter per second."""
    labels = by or subjects(metric)
    inner = f"rate({selector(metric, suffix, where)}[{window or _WINDOW}])"
    return Measure(_aggregated("sum", labels, inner), _or(unit, _RATE_UNITS.get(metric.unit, "")), labels)


def increase(metric: MetricDefinition, *by: str, window: str = _WINDOW, where: str = "", suffix: str = "") -> Measure:
    """Return the increase of a counter in a window."""
    labels = by or subjects(metric)
    inner = f"increase({selector(metric, suffix, where)}[{window}])"
    return Measure(_aggregated("sum", labels, inner), metric.unit, labels).displayable()


def quantile(level: float, metric: MetricDefinition, *by: str, window: str = _WINDOW) -> Measure:
    """Return a quantile of a histogram."""
    labels = by or subjects(metric)
    inner = _aggregated("sum", ("le", *labels), f"rate({selector(metric, '_bucket')}[{window}])")
    return Measure(f"histogram_quantile({level:g}, {inner})", metric.unit, labels)


def buckets(metric: MetricDefinition, window: str = "$__interval") -> Measure:
    """Return the observations of a histogram by bucket in each interval, for a heat map."""
    return Measure(_aggregated("sum", ("le",), f"increase({selector(metric, '_bucket')}[{window}])"), "", ("le",))


def mean(metric: MetricDefinition, *by: str) -> Measure:
    """Return the average of a histogram's observations."""
    labels = by or subjects(metric)
    return average(metric, metric, *labels, suffixes=("_sum", "_count"))


def average(
    total: MetricDefinition, count: MetricDefinition, *by: str, suffixes: tuple[str, str] = ("", "")
) -> Measure:
    """Return the average of a total over a count, where there was any."""
    labels = by or subjects(total)
    over = rate(count, *labels, suffix=suffixes[1])
    summed = rate(total, *labels, suffix=suffixes[0])
    return Measure(f"{summed.expr} / ({over.expr} > 0)", total.unit, labels)


def ratio(part: Measure, whole: Measure, unit: Unit = "ratio") -> Measure:
    """Return a quotient of two measures with the same labels, where the whole is positive."""
    return Measure(f"{_operand(part.expr)} / ({whole.expr} > 0)", unit, part.labels)


def total(*parts: Measure) -> Measure:
    """Return the sum of measures with the same labels and unit."""
    return replace(parts[0], expr=f"({' + '.join(part.expr for part in parts)})")


def _aggregated(operator: str, labels: tuple[str, ...], inner: str) -> str:
    names = tuple(label for label in labels if label)
    return f"{operator} by ({', '.join(names)}) ({inner})" if names else f"{operator}({inner})"


def _operand(expr: str) -> str:
    return expr if expr.endswith(")") and " / " not in expr else f"({expr})"


def _or(unit: Unit | None, default: Unit) -> Unit:
    return default if unit is None else unit


PanelKind: TypeAlias = Literal["lines", "number", "heatmap"]
Steps: TypeAlias = tuple[tuple[float, Literal["green", "orange", "red"]], ...]
Variables: TypeAlias = tuple[tuple[str, str, str], ...]  # name, label, and query or value


class PanelOptions(TypedDict, total=False):
    """What a panel may have in addition to its title, description and queries; see `DashboardPanel`."""

    kind: PanelKind
    range: tuple[float, float | None] | None
    steps: Steps
    width: int
    height: int
    interval: str
    bucket_unit: Unit
    stacked: bool


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """A panel. All its queries have one unit.

    `range` is what values may be, for tests and axes: None is unbounded. `steps` color values from a threshold on.
    `rows` of a heat map are buckets (`le`) or series; `interval` is the least time between its columns.
    """

    title: str
    description: str
    queries: tuple[Measure, ...]
    kind: PanelKind = "lines"
    range: tuple[float, float | None] | None = None
    steps: Steps = ()
    width: int = 8
    height: int = 8
    interval: str = ""
    bucket_unit: Unit = ""
    stacked: bool = False

    @property
    def unit(self) -> Unit:
        """The unit of all values."""
        return self.queries[0].unit

    @property
    def bounds(self) -> tuple[float, float | None]:
        """The least and the greatest value that a series may have."""
        if self.range is not None:
            return self.range
        return (0, 1) if self.unit == "ratio" else (0, 100) if self.unit == "percent" else (0, None)


def panel(title: str, description: str, *queries: Measure, **options: Unpack[PanelOptions]) -> DashboardPanel:
    """Return a panel."""
    return DashboardPanel(title, description, queries, **options)


@dataclass(frozen=True, slots=True)
class PanelRow:
    """A titled row of panels."""

    title: str
    panels: tuple[DashboardPanel, ...]


def row(title: str, *panels: DashboardPanel) -> PanelRow:
    """Return a row of panels."""
    return PanelRow(title, panels)


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
