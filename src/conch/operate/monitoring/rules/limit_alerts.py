"""Alerts about limits of requests and tokens per second."""

from conch.operate.monitoring.rules.rule import AlertingRule, InputSeries, Proof, RuleGroup, counter, gauge
from conch.operate.monitoring.rules.serving_alerts import M

_TENANT = {**M, "tenant": "t"}
_SOFT, _ENFORCED = {**_TENANT, "enforced": "false"}, {**_TENANT, "enforced": "true"}
# The label "_all" stands for all tenants, models or versions together; requests without a tenant have "".
_OF = (
    '{{ if and $labels.tenant (ne $labels.tenant "_all") }}tenant {{ $labels.tenant }} of {{ end }}'
    '{{ if eq $labels.model "_all" }}the server{{ else }}model {{ $labels.model }}'
    '{{ if ne $labels.version "_all" }} version {{ $labels.version }}{{ end }}{{ end }}'
)
_SOURCE = {"job": "conch", "instance": "a:8002", "source": "kubernetes"}


def limit_alerts() -> RuleGroup:
    """Return the alerts about limits."""
    return RuleGroup(
        "conch-limits",
        (
            *_above("ConchRequestRate", "conch_request_rate", "requests"),
            *_above("ConchTokenRate", "conch_token_rate", "tokens"),
            AlertingRule(
                "ConchRequestsRejectedByLimit",
                "warning",
                'sum by (model, version, tenant) (rate(conch_limit_exceeded_total{enforced="true"}[2m])) > 0',
                60,
                f"Requests of {_OF} are rejected: {{{{ $value | humanize }}}} a second.",
                "Raise the limit, or ask the clients to send less.",
                (
                    Proof("rejecting", (counter("conch_limit_exceeded_total", _ENFORCED, (0.2, 240)),), 180, 1),
                    Proof("the limit is soft", (counter("conch_limit_exceeded_total", _SOFT, (9, 240)),), 180, 0),
                    Proof("over", (counter("conch_limit_exceeded_total", _ENFORCED, (9, 60), (0, 240)),), 240, 0),
                ),
            ),
            AlertingRule(
                "ConchLimitChanged",
                "info",
                # A counter that appears with its first change has no increase: compare it with its own past.
                "conch_limit_changes_total > conch_limit_changes_total offset 5m"
                " or (conch_limit_changes_total unless conch_limit_changes_total offset 5m) > 0",
                0,
                "A limit was changed through {{ $labels.source }}.",
                "conch audit verify checks the log of changes, which has who, what, before and after.",
                (
                    Proof("changed", (gauge("conch_limit_changes_total", _SOURCE, (3, 600), (4, 60)),), 630, 1),
                    Proof("first change", (gauge("conch_limit_changes_total", _SOURCE, (None, 600), (1, 60)),), 630, 1),
                    Proof("long ago", (gauge("conch_limit_changes_total", _SOURCE, (3, 60), (4, 600)),), 600, 0),
                    Proof(
                        "a server started", (gauge("conch_limit_changes_total", _SOURCE, (None, 600), (0, 60)),), 630, 0
                    ),
                ),
            ),
        ),
    )


def _above(name: str, metric: str, what: str) -> tuple[AlertingRule, AlertingRule]:
    """Return the alerts for a rate above its limit, and for bursts that the rate of a scrape does not show."""
    # A tenant may have a soft and an enforced limit: the lower one counts.
    limit = f"min without (enforced) ({metric}_limit)"
    return (
        AlertingRule(
            f"{name}AboveLimit",
            "critical",
            f"{metric} > {limit}",
            30,
            f"{{{{ $value | humanize }}}} {what} a second of {_OF} are above the limit.",
            "Scale up or throttle; conch_request_rate_limit has the limit in force.",
            (
                Proof("above", _rates(metric, (120, 120)), 90, 1),
                Proof("at the limit", _rates(metric, (100, 120)), 90, 0),
                Proof("not for long enough", _rates(metric, (120, 30), (99, 90)), 90, 0),
                Proof("above the limit of another model", _rates(metric, (120, 120), other=True), 90, 0),
            ),
        ),
        AlertingRule(
            f"{name}Burst",
            "warning",
            f"{metric}_peak > 1.2 * {limit}",
            0,
            f"A burst of {{{{ $value | humanize }}}} {what} a second of {_OF} was far above the limit.",
            "The average between scrapes hides bursts; smooth the arrivals or leave headroom.",
            (
                Proof("burst", _rates(f"{metric}_peak", (125, 15), (50, 60), limit=metric), 0, 1),
                Proof("a little above the limit", _rates(f"{metric}_peak", (119, 90), limit=metric), 60, 0),
            ),
        ),
    )


def _rates(
    metric: str, *levels: tuple[float, float], limit: str = "", other: bool = False
) -> tuple[InputSeries, InputSeries]:
    limited = {**_SOFT, "model": "another"} if other else _SOFT
    return gauge(metric, _TENANT, *levels), gauge(f"{limit or metric}_limit", limited, (100, 120))
