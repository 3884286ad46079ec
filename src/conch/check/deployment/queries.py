"""Check the queries of alerting rules, recording rules and dashboards against the metrics that exist."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conch.base.kubernetes.objects import mapping
from conch.base.yaml_documents import YamlDocument
from conch.check.deployment.objects import CheckedObject
from conch.check.finding import Finding, Place, Related
from conch.check.python.check import DeclaredMetric
from conch.check.source import SourceFile
from conch.domain.metrics.catalog import all_metrics
from conch.operate.monitoring.promql import Node, PromqlError, metric_names
from conch.operate.monitoring.rules.analysis import AnalysedRule, analyse_rules, expression_problems
from conch.operate.monitoring.rules.known_metrics import MetricTable
from conch.operate.monitoring.rules.user_rules import RuleProblem, group_faults, read_rules
from conch.operate.monitoring.translate.variables import parse_template

# Mistakes that a dashboard's query has whatever its variables are.
_NO_DATA = ("unknown-metric", "unknown-label", "histogram-name", "no-buckets", "label-mismatch", "label-replace")
_WRONG = ("rate-of-gauge", "quantile")


def check_queries(
    objects: Sequence[CheckedObject], declared: Mapping[str, DeclaredMetric]
) -> tuple[dict[str, Node], list[Finding]]:
    """Check all queries; return the recorded expressions and the findings. `declared` are metrics of Python code."""
    table = MetricTable(all_metrics())
    rules = [(checked, rule) for checked in objects for rule in read_rules(_document_of(checked))]
    analysed = analyse_rules([rule for _, rule in rules], table)
    recorded = {known.rule.name: known.tree for known in analysed if not known.rule.is_alert and known.tree is not None}
    findings = [
        finding
        for (source, _), known in zip(rules, analysed, strict=True)
        for finding in _of_rule(source.source, known)
    ]
    for checked in objects:
        findings += _of_groups(checked)
        findings += _of_dashboards(checked, table, recorded)
    for (source, _), rule in zip(rules, analysed, strict=True):
        findings += _of_declared(source.source, rule, declared)
    return recorded, findings


def _document_of(checked: CheckedObject) -> YamlDocument:
    """Return an object as a document, with the lines of its parts."""
    length = len(checked.path)
    if length and checked.kind not in ("", "PrometheusRule") and "groups" not in mapping(checked.value, "spec"):
        return YamlDocument(checked.value)  # one of a list of objects, without rules: its lines are not used
    lines = {path[length:]: line for path, line in checked.document.lines.items() if path[:length] == checked.path}
    if isinstance(checked.document.value, list):  # a list of rules, which stands below "rules" in the object
        lines = {("rules", *path): line for path, line in lines.items()}
    return YamlDocument(checked.value, lines)


def _of_rule(source: SourceFile, analysed: AnalysedRule) -> Iterator[Finding]:
    rule = analysed.rule
    for fault in rule.faults:
        yield Finding("rule-invalid", Place(source.path, fault.line, 1), f"rule '{rule.name}': {fault.message}")
    if rule.faults:
        return
    first = {problem.message: problem for problem in reversed(analysed.problems)}
    for message, problem in first.items():
        place = Place(source.path, rule.line + rule.expr[: problem.offset].count("\n"), 1)
        what = f"alert '{rule.name}'" if rule.is_alert else f"record '{rule.name}'"
        if problem.verdict == "never":
            rule_id = "alert-never-fires" if rule.is_alert else "query-no-data"
            yield Finding(rule_id, place, f"{what}: {message}")
        elif problem.verdict == "wrong":
            yield Finding("alert-wrong", place, f"{what}: {message}")


def _of_groups(checked: CheckedObject) -> Iterator[Finding]:
    for fault in group_faults(_document_of(checked)):
        yield Finding("rule-invalid", Place(checked.source.path, fault.line, 1), fault.message)


def _of_declared(
    source: SourceFile, analysed: AnalysedRule, declared: Mapping[str, DeclaredMetric]
) -> Iterator[Finding]:
    """Find the name of a counter for a metric that Python code declares as a gauge."""
    rule = analysed.rule
    for name in sorted(metric_names(analysed.tree)) if analysed.tree is not None else ():
        metric = declared.get(name.removesuffix("_total"))
        if name.endswith("_total") and name not in declared and metric is not None and metric.kind == "gauge":
            place = Place(source.path, rule.line + rule.expr[: max(rule.expr.find(name), 0)].count("\n"), 1)
            what = f"alert '{rule.name}'" if rule.is_alert else f"record '{rule.name}'"
            message = (
                f"{what}: no metric is named '{name}': {metric.place.path.name} declares '{metric.name}', a gauge, "
                "which has no _total and no rate"
            )
            cure = f"Use avg_over_time({metric.name}[…]), or the rate of a counter: nv_inference_request_success."
            rule_id = "alert-never-fires" if rule.is_alert else "query-no-data"
            yield Finding(rule_id, place, message, cure, (Related(metric.place, f"the gauge '{metric.name}'"),))


def _of_dashboards(checked: CheckedObject, table: MetricTable, recorded: dict[str, Node]) -> Iterator[Finding]:
    if checked.kind == "ConfigMap":
        for name, text in mapping(checked.value, "data").items():
            if isinstance(text, str) and str(name).endswith(".json"):
                try:
                    dashboard = json.loads(text)
                except ValueError:
                    continue
                yield from _of_dashboard(checked, dashboard, checked.place("data", str(name)), table, recorded)
    elif checked.source.path.suffix == ".json":
        yield from _of_dashboard(checked, checked.value, None, table, recorded)


def _of_dashboard(
    checked: CheckedObject, dashboard: Any, place: Place | None, table: MetricTable, recorded: dict[str, Node]
) -> Iterator[Finding]:
    for panel, text in dict.fromkeys(_panel_queries(dashboard, "")):
        for problem in _problems(text, table, recorded):
            where = place or checked.source.at(max(checked.source.text.find(json.dumps(text, ensure_ascii=False)), 0))
            rule = "query-no-data" if problem.code in (*_NO_DATA, "syntax") else "query-wrong"
            yield Finding(rule, where, f"panel '{panel}': {problem.message}")


def _problems(text: str, table: MetricTable, recorded: dict[str, Node]) -> list[RuleProblem]:
    try:
        tree = parse_template(text).tree
    except PromqlError as error:
        # A variable can stand for a part that no placeholder replaces.
        return [] if "$" in text else [RuleProblem("never", "syntax", str(error), error.offset)]
    return [
        problem
        for problem in expression_problems(tree, table, recorded)
        if (problem.verdict == "never" and problem.code in _NO_DATA)
        or (problem.verdict == "wrong" and problem.code in _WRONG)
    ]


def _panel_queries(value: Any, panel: str) -> Iterator[tuple[str, str]]:
    """Yield the titles of panels and their queries in PromQL."""
    if isinstance(value, list):
        for item in value:
            yield from _panel_queries(item, panel)
    elif isinstance(value, dict):
        if isinstance(value.get("targets"), list):
            panel = str(value.get("title") or panel)
            for target in value["targets"]:
                text = target.get("expr") if isinstance(target, dict) and _is_prometheus(target, value) else None
                if isinstance(text, str) and text.strip():
                    yield panel, text
        for key in ("panels", "rows", "dashboard"):
            yield from _panel_queries(value.get(key), panel)


def _is_prometheus(target: dict[str, Any], panel: dict[str, Any]) -> bool:
    """Return whether the query is for Prometheus, as far as the dashboard says: Loki's are named expr, too."""
    for owner in (target, panel):
        kind = mapping(owner, "datasource").get("type")
        if kind and kind != "datasource":
            return bool(kind == "prometheus")
    return True
