"""Tunnels: the state of `conch tunnel`, on its own port (9405)."""

from conch.domain.metrics.metric import MetricDefinition

UP = MetricDefinition(
    "conch_tunnel_up",
    "gauge",
    "Whether the last probe through the tunnel was answered by the exporter: 1 or 0.",
    ("target",),
)
CONNECTS = MetricDefinition(
    "conch_tunnel_connects_total",
    "counter",
    "SSH connections whose forwards were established.",
    ("target",),
)
LAST_CONNECT = MetricDefinition(
    "conch_tunnel_last_connect_timestamp_seconds",
    "gauge",
    "Unix time at which the forwards were last established. Absent before the first time.",
    ("target",),
    "timestamp_seconds",
)
FAILURES = MetricDefinition(
    "conch_tunnel_failures_total",
    "counter",
    "Failures of the tunnel, by reason: those that ended an SSH connection or attempt, and probes without an answer.",
    ("target", "reason"),
)
TUNNEL = (UP, CONNECTS, LAST_CONNECT, FAILURES)
