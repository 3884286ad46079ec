"""Metrics of rates and limits."""

from conch.domain.metrics.metric import MetricDefinition

_SUBJECT = ("model", "version", "tenant")
_SUBJECT_ENFORCED = (*_SUBJECT, "enforced")

REQUEST_RATE = MetricDefinition(
    "conch_request_rate",
    "gauge",
    "Admitted requests of the last second; label values _all stand for all together.",
    _SUBJECT,
    "requests_per_second",
)
REQUEST_RATE_PEAK = MetricDefinition(
    "conch_request_rate_peak",
    "gauge",
    "Maximum of conch_request_rate since the last scrape or the one before.",
    _SUBJECT,
    "requests_per_second",
)
REQUEST_RATE_LIMIT = MetricDefinition(
    "conch_request_rate_limit",
    "gauge",
    "Limit of conch_request_rate, with the same labels; enforced is true or false.",
    _SUBJECT_ENFORCED,
    "requests_per_second",
)
TOKEN_RATE = MetricDefinition(
    "conch_token_rate",
    "gauge",
    "Tokens of prompts and answers of the last second; label values _all stand for all together.",
    _SUBJECT,
    "tokens_per_second",
)
TOKEN_RATE_PEAK = MetricDefinition(
    "conch_token_rate_peak",
    "gauge",
    "Maximum of conch_token_rate since the last scrape or the one before.",
    _SUBJECT,
    "tokens_per_second",
)
TOKEN_RATE_LIMIT = MetricDefinition(
    "conch_token_rate_limit",
    "gauge",
    "Limit of conch_token_rate, with the same labels; enforced is true or false.",
    _SUBJECT_ENFORCED,
    "tokens_per_second",
)
LIMIT_EXCEEDED = MetricDefinition(
    "conch_limit_exceeded_total",
    "counter",
    "Requests over a limit: refused if it is enforced, else served.",
    _SUBJECT_ENFORCED,
)
LIMIT_TENANTS = MetricDefinition(
    "conch_limit_tenants",
    "gauge",
    "Tenants with separate rates, besides those that limits name.",
)
LIMIT_TENANTS_OVERFLOW = MetricDefinition(
    "conch_limit_tenants_overflow_total",
    "counter",
    "Requests of tenants beyond the maximum number, which count together as tenant _other.",
)
LIMIT_CHANGES = MetricDefinition(
    "conch_limit_changes_total", "counter", "Changes of limits by their source.", ("source",)
)
LIMIT_SOURCE_UP = MetricDefinition(
    "conch_limit_source_up",
    "gauge",
    "1 if the source of limits could be read and was valid; if it is 0, its last limits stay in force.",
    ("source",),
)
LIMIT_LAST_CHANGE = MetricDefinition(
    "conch_limit_last_change_timestamp_seconds",
    "gauge",
    "Time of the last change of limits, in seconds since the epoch.",
    unit="timestamp_seconds",
)
LIMIT_AUDIT_RECORDS = MetricDefinition(
    "conch_limit_audit_records",
    "gauge",
    "Sequence number of the last record of the audit log of limits.",
)
LIMIT_AUDIT_FAILURES = MetricDefinition(
    "conch_limit_audit_failures_total",
    "counter",
    "Records that could not be written to the audit log of limits.",
)
STAGE_REQUESTS = MetricDefinition(
    "conch_ensemble_stage_requests",
    "gauge",
    "Requests of a stage that one request of an ensemble causes at most; absent behind a decoupled stage.",
    ("model", "version", "stage", "stage_version"),
)
