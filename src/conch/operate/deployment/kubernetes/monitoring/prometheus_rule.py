"""The PrometheusRule: recorded ratios and alerts of the release."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from conch.operate.deployment.kubernetes.monitoring.release_rules import release_groups, release_rule_file
from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.values.deployment import DeploymentValues
from conch.operate.deployment.values.monitoring import ThresholdValues
from conch.operate.monitoring.rules.thresholds import Thresholds


def prometheus_rule(values: DeploymentValues, release: Release) -> Iterator[dict[str, Any]]:
    """Yield the PrometheusRule, if the values ask for one."""
    monitoring = values.monitoring
    if monitoring.enabled and monitoring.rules.enabled:
        groups = release_groups(_thresholds(monitoring.rules.thresholds), release)
        yield {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": release.metadata("autoscaler", labels=monitoring.labels),
            "spec": release_rule_file(groups, release, f"{monitoring.rules.interval_seconds}s"),
        }


def _thresholds(values: ThresholdValues) -> Thresholds:
    return Thresholds(**{each.name: getattr(values, each.name) for each in fields(Thresholds)})
