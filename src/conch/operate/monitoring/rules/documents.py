"""Rules as documents: Prometheus rule files, PrometheusRule objects, Alertmanager's routes."""

from collections.abc import Iterable, Mapping
from typing import Any

from conch.operate.monitoring.promql import duration
from conch.operate.monitoring.rules.rule import AlertingRule, RecordingRule, RuleGroup


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


def alertmanager_file(webhook: str) -> dict[str, Any]:
    """Return a configuration of Alertmanager that routes the alerts to a webhook, urgent ones sooner."""
    return {
        "route": {
            "receiver": "conch",
            "group_by": ["alertname", "model", "model_name", "instance"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "4h",
            "routes": [
                {
                    "matchers": ['alertname=~"Conch.*"', 'severity="critical"'],
                    "receiver": "conch",
                    "group_wait": "5s",
                    # Above the receiver's default of deduplicate_for, 1h, which would swallow the repetition.
                    "repeat_interval": "2h",
                },
                {
                    "matchers": ['alertname=~"Conch.*"', 'severity="info"'],
                    "receiver": "conch",
                    "group_wait": "1m",
                    "repeat_interval": "24h",
                },
            ],
        },
        # A target that is down explains its other alerts, and fast burning of a budget explains slow burning.
        "inhibit_rules": [
            {
                "source_matchers": ['alertname="ConchTargetDown"'],
                "target_matchers": ['alertname=~"Conch.*"', 'alertname!="ConchTargetDown"'],
                "equal": ["instance"],
            },
            {
                "source_matchers": ['alertname="ConchErrorBudgetBurnFast"'],
                "target_matchers": ['alertname=~"ConchErrorBudgetBurn|ConchErrorBudgetBurnSlow"'],
                "equal": ["model", "version"],
            },
        ],
        "receivers": [{"name": "conch", "webhook_configs": [{"url": webhook, "send_resolved": True}]}],
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
