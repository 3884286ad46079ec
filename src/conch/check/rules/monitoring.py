"""The rules for alerts, dashboards, monitors and autoscalers beside a repository. Ids never change."""

from conch.check.finding import Rule, Severity

_ERROR, _WARNING, _NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE

ALERT_NEVER_FIRES = Rule(
    "alert-never-fires",
    _ERROR,
    "Alert that can never fire",
    "What it watches for happens unnoticed.",
    "Correct the expression, and let `conch rules prove` find series that fire it.",
)
ALERT_WRONG = Rule(
    "alert-wrong",
    _WARNING,
    "Alert or recording rule that does not do what it says",
    "It fires for ever, at random, or with misleading values.",
    "Use a function that suits the metric: rate or increase for counters, avg_over_time or delta for gauges.",
)
RULE_INVALID = Rule(
    "rule-invalid",
    _ERROR,
    "Rule or group with an unknown or missing key, or an invalid duration",
    "Prometheus refuses the whole file: none of its alerts fires.",
    "Correct the key; `promtool check rules` has Prometheus's own message.",
)
QUERY_NO_DATA = Rule(
    "query-no-data",
    _ERROR,
    "Query without data in a dashboard or a recording rule",
    "The panel stays empty, and whatever uses the record has no data.",
    "Use a metric and labels that exist; docs/reference/metrics.md lists those of Conch.",
)
QUERY_WRONG = Rule(
    "query-wrong",
    _WARNING,
    "Query of a dashboard that does not show what it says",
    "The values are misleading.",
    "Use a function that suits the metric: rate or increase for counters, avg_over_time or delta for gauges.",
)
MONITOR_SELECTS_NOTHING = Rule(
    "monitor-selects-nothing",
    _ERROR,
    "ServiceMonitor or PodMonitor whose selector matches nothing",
    "Prometheus scrapes nothing, without an error.",
    "Give the Service or the pods the labels that the monitor selects; a Service's own selector does not count.",
)
MONITOR_PORT = Rule(
    "monitor-port",
    _ERROR,
    "Monitor of a port that the Service or the pods do not name",
    "Prometheus scrapes nothing, without an error.",
    "Name the port in the Service or in the container, and use that name in the monitor.",
)
AUTOSCALER_COUNTER = Rule(
    "autoscaler-counter",
    _ERROR,
    "Autoscaler on a counter",
    "A counter only grows: the deployment is scaled to its maximum and stays there.",
    "Scale on a rate or a ratio, such as triton:queue_compute:ratio, which `conch rules` records.",
)
AUTOSCALER_METRIC = Rule(
    "autoscaler-metric",
    _WARNING,
    "Autoscaler on an unknown metric",
    "The autoscaler has no value and does nothing.",
    "Use a metric that exists; docs/reference/metrics.md lists those of Conch.",
)
LIMITS_INVALID = Rule(
    "limits-invalid",
    _ERROR,
    "Limits that are not valid",
    "A server does not start with such a file, and keeps the last limits if it changes or an annotation does.",
    "Write limits as in docs/observability/limits.md.",
)
LIMITS_UNKNOWN_MODEL = Rule(
    "limits-unknown-model",
    _NOTICE,
    "Limits of a model that no repository has",
    "They limit nothing until a model of that name is served.",
    "Correct the name, or keep the limits for a model that is deployed elsewhere.",
)
MONITORING_UNCHECKED = Rule(
    "monitoring-unchecked",
    _NOTICE,
    "Manifests and files for monitoring that are not checked",
    "Errors in manifests, compose files, alerts, dashboards, monitors and autoscalers are not found.",
    "Install what the check needs: pip install 'conch-server[monitoring]'",
)

RULES: tuple[Rule, ...] = tuple(value for value in globals().values() if isinstance(value, Rule))
