"""Rules, their proofs with series in promtool's notation, and their documents for Prometheus."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from conch.operate.monitoring.promql import duration

Severity: TypeAlias = Literal["critical", "warning", "info"]

_INTERVAL_S = 15  # between the samples of a proof, as between scrapes


@dataclass(frozen=True, slots=True)
class InputSeries:
    """A series of a proof: its name with labels, and its samples in promtool's notation."""

    series: str
    values: str


@dataclass(frozen=True, slots=True)
class Proof:
    """Series, and how many alerts they fire at a time; 0 for a near miss. `what` describes the series."""

    what: str
    series: tuple[InputSeries, ...]
    at_s: float
    fires: int
    interval_s: int = _INTERVAL_S


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """A query whose result is recorded as a metric."""

    name: str
    expr: str


@dataclass(frozen=True, slots=True)
class AlertingRule:
    """An alert. `summary` and `remedy` are templates of annotations; `{{ $labels.model }}` is the label of a result."""

    name: str
    severity: Severity
    expr: str
    for_s: float
    summary: str
    remedy: str
    proofs: tuple[Proof, ...]


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that Prometheus evaluates one after the other."""

    name: str
    rules: tuple[RecordingRule | AlertingRule, ...]

    @property
    def alerts(self) -> tuple[AlertingRule, ...]:
        """The alerts of the group."""
        return tuple(rule for rule in self.rules if isinstance(rule, AlertingRule))


def gauge(
    metric: str, labels: Mapping[str, str], *levels: tuple[float | None, float], interval_s: int = _INTERVAL_S
) -> InputSeries:
    """Return a series that stays at each level for a number of seconds; None is an absent series."""
    parts = []
    for value, seconds in levels:
        samples = max(round(seconds / interval_s), 1)
        parts.append(f"_x{samples}" if value is None else f"{_number(value)}x{samples - 1}")
    return InputSeries(_series_name(metric, labels), " ".join(parts))


def counter(
    metric: str,
    labels: Mapping[str, str],
    *rates: tuple[float | None, float],
    start: float = 0,
    interval_s: int = _INTERVAL_S,
) -> InputSeries:
    """Return a series that grows by each rate, per second, for a number of seconds; None is an absent series."""
    parts = []
    for rate, seconds in rates:
        samples = max(round(seconds / interval_s), 1)
        if rate is None:
            parts.append(f"_x{samples}")
        else:
            step = rate * interval_s
            parts.append(f"{_number(start)}+{_number(step)}x{samples - 1}")
            start += step * samples
    return InputSeries(_series_name(metric, labels), " ".join(parts))


def ramp(metric: str, labels: Mapping[str, str], first: float, last: float, seconds: float) -> InputSeries:
    """Return a series that grows or falls evenly."""
    samples = round(seconds / _INTERVAL_S)
    step = (last - first) / samples
    return InputSeries(
        _series_name(metric, labels), f"{_number(first)}{'+' if step >= 0 else ''}{_number(step)}x{samples}"
    )


def _series_name(metric: str, labels: Mapping[str, str]) -> str:
    pairs = [f'{name}="{value}"' for name, value in labels.items()]
    return f"{metric}{{{', '.join(pairs)}}}"


def _number(value: float) -> str:
    return f"{value:.12g}"


def rule_file(groups: Iterable[RuleGroup]) -> dict[str, Any]:
    """Return a rule file of Prometheus."""
    return {"groups": [{"name": group.name, "rules": [_rule(rule) for rule in group.rules]} for group in groups]}


def prometheus_rule(
    groups: Iterable[RuleGroup], name: str, namespace: str | None, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return a PrometheusRule object; the operator selects it by its labels."""
    metadata: dict[str, Any] = {"name": name, "labels": {"app.kubernetes.io/name": "conch", **labels}}
    if namespace:
        metadata["namespace"] = namespace
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata,
        "spec": rule_file(groups),
    }


def _rule(rule: RecordingRule | AlertingRule) -> dict[str, Any]:
    if isinstance(rule, RecordingRule):
        return {"record": rule.name, "expr": rule.expr}
    document: dict[str, Any] = {"alert": rule.name, "expr": rule.expr}
    if rule.for_s:
        document["for"] = duration(rule.for_s)
    document["labels"] = {"severity": rule.severity}
    document["annotations"] = {"summary": rule.summary, "description": rule.remedy}
    return document
