"""Check the metrics of HorizontalPodAutoscalers, and the queries of KEDA's ScaledObjects."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conch.base.kubernetes_parts import items, mapping
from conch.check.finding import Finding, Place
from conch.check.monitoring.objects import MonitoringObject
from conch.domain.metrics.catalog import all_metrics
from conch.operate.monitoring.promql import Aggregation, Call, Node, PromqlError, Selector, metric_names, parse, strip
from conch.operate.monitoring.rules.known_metrics import MetricTable

_SUMS = ("sum", "avg", "max", "min")


def check_autoscalers(objects: Sequence[MonitoringObject], recorded: Mapping[str, Node]) -> Iterator[Finding]:
    """Check that no autoscaler uses a counter as it is, nor a metric that does not exist."""
    table = MetricTable(all_metrics())
    for each in objects:
        if each.kind == "HorizontalPodAutoscaler":
            for index, metric in enumerate(items(each.value, "spec", "metrics")):
                for source in ("pods", "object", "external"):
                    name = mapping(metric, source, "metric").get("name")
                    if isinstance(name, str) and name not in recorded:
                        place = each.place("spec", "metrics", index, source, "metric", "name")
                        yield from _of_name(f"HorizontalPodAutoscaler '{each.name}'", name, place, table)
        elif each.kind == "ScaledObject":
            for index, trigger in enumerate(items(each.value, "spec", "triggers")):
                query = mapping(trigger, "metadata").get("query")
                if trigger.get("type") == "prometheus" and isinstance(query, str):
                    place = each.place("spec", "triggers", index, "metadata", "query")
                    yield from _of_query(f"ScaledObject '{each.name}'", query, place, table)


def _of_name(what: str, name: str, place: Place, table: MetricTable) -> Iterator[Finding]:
    metric = table.find(name)
    if metric is not None and metric.is_counter:
        yield Finding("autoscaler-counter", place, f"{what} scales on '{name}', a counter")
    elif metric is None and table.is_own(name):
        yield Finding("autoscaler-metric", place, f"{what}: no metric is named '{name}'{table.suggestion(name)}")


def _of_query(what: str, query: str, place: Place, table: MetricTable) -> Iterator[Finding]:
    try:
        tree = parse(query)
    except PromqlError as error:
        if not any(sign in query for sign in "{$"):  # a template
            yield Finding("autoscaler-metric", place, f"{what}: {error}")
        return
    selector = _plain(tree)
    metric = table.find(selector.metric or "") if selector else None
    if selector is not None and metric is not None and metric.is_counter:
        yield Finding("autoscaler-counter", place, f"{what} scales on '{selector.metric}', a counter")
    for name in sorted(metric_names(tree)):
        if table.find(name) is None and table.is_own(name):
            message = f"{what}: no metric is named '{name}'{table.suggestion(name)}"
            yield Finding("autoscaler-metric", place, message)


def _plain(node: Node) -> Selector | None:
    """Return the selector whose values a query has as they are, or summed."""
    inner: Any = strip(node)
    while isinstance(inner, Aggregation) and inner.operator in _SUMS:
        inner = strip(inner.expr)
    if isinstance(inner, Call) and inner.function == "scalar":
        return _plain(inner.arguments[0])
    return inner if isinstance(inner, Selector) and inner.range_s is None else None
