"""The chart's rules as a file with a place for each threshold: `@p99@` is replaced by the template.

Templates of Helm cannot be used for them: the annotations of alerts have templates of Prometheus. The rules are made
with thresholds that no other number equals, and where such a number stands, or one that is derived from it, is a place.

The rules read the series of one release only, and what they record and alert about names the release. Otherwise two
releases in a cluster would record the same series, and each alert would fire twice.
"""

import re
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from conch.base.yaml_documents import dump_documents
from conch.operate.monitoring.promql import LabelMatcher, Node, Selector, duration, parse, render, rewrite
from conch.operate.monitoring.rules.rule import AlertingRule, RecordingRule, RuleGroup, rule_file
from conch.operate.monitoring.rules.shipped_alerts import rule_groups
from conch.operate.monitoring.rules.thresholds import Thresholds

_NAME, _NAMESPACE = "@release@", "@namespace@"
# About processes that no pod of a release runs: they have the rules of `conch rules`.
_OF_OTHERS = ("ConchTunnelDown", "ConchAlertsUndelivered")
_UNIQUE = Thresholds(
    queue_time=0.1237,
    oldest_request=12.347,
    queue_compute_ratio=1.2379,
    failure_ratio=0.05239,
    objective=0.97531,
    p99=1.4567,
    utilization=0.91357,
    scale_up=61.357,
    restarts=3.579,
    unready=137,
    kv_cache=0.87531,
    waiting_requests=13.579,
    ttft=2.3571,
    gpu_temperature=81.357,
    gpu_idle=0.31357,
    gpu_idle_time=4567,
    gpu_memory=0.95713,
)
_IN_DURATIONS = ("unready", "gpu_idle_time")
# Place → number that is derived from a threshold; the template `prometheus-rule.yaml` has the formulas.
_DERIVED = {
    "burnFast": f"{14.4 * (1 - _UNIQUE.objective):.6g}",
    "burn": f"{6 * (1 - _UNIQUE.objective):.6g}",
    "burnSlow": f"{1 - _UNIQUE.objective:.6g}",
    "objectivePercent": f"{_UNIQUE.objective * 100:g}",
    "halfUtilization": f"{_UNIQUE.utilization / 2:.3g}",
}


def rules_file() -> str:
    """Return the groups of rules with places for what the values and the release determine."""
    groups = release_groups(_UNIQUE, _NAME, _NAMESPACE)
    text = dump_documents([_labelled(groups)])
    for place, number in _places().items():
        text, count = re.subn(rf"(?<![\w.]){re.escape(number)}(?!\w|\.\d)", f"@{place}@", text)
        assert count, f"no rule has the threshold {place}"
    return text


def _places() -> dict[str, str]:
    places = dict(_DERIVED)
    for threshold in fields(Thresholds):
        value = getattr(_UNIQUE, threshold.name)
        if threshold.name in _IN_DURATIONS:
            places[camel_case(threshold.name)] = duration(value)
        elif threshold.name != "objective":
            places[camel_case(threshold.name)] = f"{value:g}"
    return places


def camel_case(name: str) -> str:
    """Return the name of a threshold in the chart's values."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def release_groups(thresholds: Thresholds, name: str, namespace: str) -> list[RuleGroup]:
    """Return the recording rules and alerts about the servers of a release."""
    return [
        RuleGroup(
            group.name, tuple(_scoped(rule, name, namespace) for rule in group.rules if rule.name not in _OF_OTHERS)
        )
        for group in rule_groups(thresholds)
    ]


def _labelled(groups: Iterable[RuleGroup]) -> list[dict[str, Any]]:
    """Return the groups of a rule file, with the labels of the release, and the interval of recording rules."""
    labelled: list[dict[str, Any]] = rule_file(groups)["groups"]
    for group in labelled:
        for rule in group["rules"]:
            rule["labels"] = {**rule.get("labels", {}), "namespace": _NAMESPACE, "job": _NAME}
        if any("record" in rule for rule in group["rules"]):
            group["interval"] = "@interval@"
    return labelled


def _scoped(rule: RecordingRule | AlertingRule, name: str, namespace: str) -> RecordingRule | AlertingRule:
    scope = (LabelMatcher("namespace", "=", namespace), LabelMatcher("job", "=", name))

    def select(node: Node) -> Node:
        if not isinstance(node, Selector):
            return node
        own = tuple(matcher for matcher in node.matchers if matcher.label not in ("namespace", "job"))
        return replace(node, matchers=(*own, *scope))

    return replace(rule, expr=render(rewrite(parse(rule.expr), select)))
