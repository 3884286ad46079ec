"""Metrics of `conch alerts receive`."""

from conch.domain.metrics.metric import MetricDefinition

_TARGET = ("target",)

ALERTS_RECEIVED = MetricDefinition(
    "conch_alerts_received_total", "counter", "Number of alerts in accepted webhooks, with duplicates."
)
ALERTS_DUPLICATES = MetricDefinition(
    "conch_alerts_duplicates_total", "counter", "Number of alerts that were dropped as duplicates.", _TARGET
)
ALERTS_UNROUTED = MetricDefinition(
    "conch_alerts_unrouted_total", "counter", "Number of alerts that no route of the configuration matches."
)
ALERTS_REFUSED_WEBHOOKS = MetricDefinition(
    "conch_alerts_refused_webhooks_total", "counter", "Number of refused webhooks.", ("reason",)
)
ALERTS_DELIVERED = MetricDefinition(
    "conch_alerts_delivered_total", "counter", "Number of alerts in messages that the target accepted.", _TARGET
)
ALERTS_FAILED_ATTEMPTS = MetricDefinition(
    "conch_alerts_failed_attempts_total", "counter", "Number of failed attempts to deliver a message.", _TARGET
)
ALERTS_GIVEN_UP = MetricDefinition(
    "conch_alerts_given_up_total",
    "counter",
    "Number of alerts that the target rejected until the receiver gave up.",
    _TARGET,
)
ALERTS_QUEUED = MetricDefinition(
    "conch_alerts_queued", "gauge", "Number of alerts that wait for their delivery.", _TARGET
)
ALERTS_OLDEST_QUEUED = MetricDefinition(
    "conch_alerts_oldest_queued_seconds",
    "gauge",
    "Age of the oldest alert that waits for its delivery, 0 without any.",
    _TARGET,
    "seconds",
)

METRICS = (
    ALERTS_RECEIVED,
    ALERTS_DUPLICATES,
    ALERTS_UNROUTED,
    ALERTS_REFUSED_WEBHOOKS,
    ALERTS_DELIVERED,
    ALERTS_FAILED_ATTEMPTS,
    ALERTS_GIVEN_UP,
    ALERTS_QUEUED,
    ALERTS_OLDEST_QUEUED,
)
