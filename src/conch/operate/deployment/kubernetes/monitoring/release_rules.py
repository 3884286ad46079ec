"""The rules of one release: they read its series only, and what they record and alert about names the release.

Without that, two releases in a cluster would record the same series, and each alert would fire twice.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from conch.operate.deployment.kubernetes.release import Release
from conch.operate.monitoring.promql import LabelMatcher, Node, Selector, parse, render, rewrite
from conch.operate.monitoring.rules.rule import AlertingRule, RecordingRule, RuleGroup, rule_file
from conch.operate.monitoring.rules.shipped_alerts import rule_groups
from conch.operate.monitoring.rules.thresholds import Thresholds

# About processes that no pod of a release runs: they have the rules of `conch rules`.
_OF_OTHERS = ("ConchTunnelDown", "ConchAlertsUndelivered")


def release_groups(thresholds: Thresholds, release: Release) -> list[RuleGroup]:
    """Return the recording rules and alerts about the servers of a release."""
    return [
        RuleGroup(group.name, tuple(_scoped(rule, release) for rule in group.rules if not _is_of_others(rule)))
        for group in rule_groups(thresholds)
    ]


def release_rule_file(groups: Iterable[RuleGroup], release: Release, interval: str) -> dict[str, Any]:
    """Return the groups as a rule file. `interval` is how often the recording rules are evaluated."""
    document = rule_file(groups)
    for group in document["groups"]:
        for rule in group["rules"]:
            rule["labels"] = {**rule.get("labels", {}), "namespace": release.namespace, "job": release.name}
        if any("record" in rule for rule in group["rules"]):
            group["interval"] = interval
    return document


def _is_of_others(rule: RecordingRule | AlertingRule) -> bool:
    return rule.name in _OF_OTHERS


def _scoped(rule: RecordingRule | AlertingRule, release: Release) -> RecordingRule | AlertingRule:
    scope = (LabelMatcher("namespace", "=", release.namespace), LabelMatcher("job", "=", release.name))

    def select(node: Node) -> Node:
        if not isinstance(node, Selector):
            return node
        own = tuple(each for each in node.matchers if each.label not in ("namespace", "job"))
        return replace(node, matchers=(*own, *scope))

    return replace(rule, expr=render(rewrite(parse(rule.expr), select)))
