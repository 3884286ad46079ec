"""Custom metrics: the state of the metrics that `--metrics-config=custom_metrics=FILE` declares."""

from conch.domain.metrics.metric import MetricDefinition

CUSTOM_OVERFLOWS = MetricDefinition(
    "conch_custom_metric_overflows_total",
    "counter",
    "Requests that a custom metric omits, because their labels would be a series beyond its maximum.",
    ("family",),
)
CUSTOM_ERRORS = MetricDefinition(
    "conch_custom_metric_errors_total",
    "counter",
    "Requests that a custom metric omits, because an expression of it failed, such as a division by zero.",
    ("family",),
)
