"""What monitors, rules and autoscalers select exists: labels, series, targets. Rules are valid; their alerts fire."""

from dataclasses import fields
from typing import get_args

from conch.deployment.kubernetes.scaling_metrics import POD_METRICS
from conch.deployment.values.autoscaling import PodMetricName
from conch.deployment.values.monitoring import ThresholdValues
from conch.monitoring.rules.thresholds import Thresholds


def test_every_metric_that_values_may_name_has_a_query() -> None:
    assert list(POD_METRICS) == list(get_args(PodMetricName))


def test_every_threshold_of_the_rules_is_a_value() -> None:
    values = ThresholdValues()
    assert ThresholdValues.__struct_fields__ == tuple(each.name for each in fields(Thresholds))
    assert all(getattr(values, each.name) == each.default for each in fields(Thresholds))
