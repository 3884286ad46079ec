"""The dashboard of limits of requests and tokens per second."""

from conch.domain.metrics import limits
from conch.domain.metrics.metric import MetricDefinition
from conch.operate.monitoring.dashboards.measure import Measure, gauge, increase, rate, ratio, selector
from conch.operate.monitoring.dashboards.panel import DashboardPanel, GrafanaDashboard, PanelRow, line

_SUBJECT = ("model", "version", "tenant")


def _rates(
    unit: str, rate_of: MetricDefinition, peak: MetricDefinition, limit: MetricDefinition
) -> tuple[DashboardPanel, DashboardPanel]:
    """Return a panel of rates beside their limits, and one of the share of the limits in use, of each server."""
    by = ("instance", *_SUBJECT)
    measured, allowed = gauge(rate_of, *by, operator="max"), gauge(limit, *by, operator="min")
    peaks = gauge(peak, *by, operator="max")
    compared = DashboardPanel(
        f"{unit} per second and limits",
        f"{unit} of the last second, and the lowest limit of each model, version and tenant, of each server.",
        (line(measured, "rate"), line(peaks, "peak"), line(gauge(limit, *by, "enforced", operator="min"), "limit")),
        width=12,
    )
    used = DashboardPanel(
        f"Share of limits used, {unit.lower()}",
        "Rate and peak since the last scrape, divided by the lowest limit. Above 1 the limit is exceeded.",
        (line(ratio(measured, allowed), "rate"), line(ratio(peaks, allowed), "peak")),
        range=(0, None),
        steps=((0, "green"), (0.8, "orange"), (1, "red")),
        width=12,
    )
    return compared, used


LIMITS = GrafanaDashboard(
    "conch-limits",
    "Conch / Limits",
    "Requests and tokens per second beside their limits, what exceeds them, and changes of limits.",
    (
        PanelRow(
            "Rates",
            (
                *_rates("Requests", limits.REQUEST_RATE, limits.REQUEST_RATE_PEAK, limits.REQUEST_RATE_LIMIT),
                *_rates("Tokens", limits.TOKEN_RATE, limits.TOKEN_RATE_PEAK, limits.TOKEN_RATE_LIMIT),
                DashboardPanel(
                    "Requests over a limit",
                    "Requests per second over a limit: refused if it is enforced, else served.",
                    (line(rate(limits.LIMIT_EXCEEDED, *_SUBJECT, "enforced", unit="requests_per_second")),),
                    width=24,
                ),
            ),
        ),
        PanelRow(
            "Sources and changes",
            (
                DashboardPanel(
                    "Sources",
                    "1 if the source of limits is readable and valid. If it is 0, its last limits stay in force.",
                    (line(gauge(limits.LIMIT_SOURCE_UP, "instance", "source", operator="min")),),
                    range=(0, 1),
                    steps=((0, "red"), (1, "green")),
                ),
                DashboardPanel(
                    "Changes in an hour",
                    "Changes of limits by their source.",
                    (line(increase(limits.LIMIT_CHANGES, "source", window="1h")),),
                ),
                DashboardPanel(
                    "Time since the last change",
                    "Time since limits changed last, on the server where that was longest ago.",
                    (
                        line(
                            Measure(
                                f"time() - min by (instance) ({selector(limits.LIMIT_LAST_CHANGE)})",
                                "seconds",
                                ("instance",),
                            )
                        ),
                    ),
                ),
                DashboardPanel(
                    "Tenants",
                    "Tenants that are measured separately, besides those that limits name.",
                    (line(gauge(limits.LIMIT_TENANTS, "instance")),),
                ),
                DashboardPanel(
                    "Audit log",
                    "Records in the audit log, and those that could not be written.",
                    (
                        line(gauge(limits.LIMIT_AUDIT_RECORDS, "instance"), "records"),
                        line(increase(limits.LIMIT_AUDIT_FAILURES, "instance", window="1h"), "failures in an hour"),
                    ),
                ),
                DashboardPanel(
                    "Requests of stages",
                    "Requests of a stage that one request of an ensemble causes at most.",
                    (line(gauge(limits.STAGE_REQUESTS, "model", "stage", operator="max")),),
                ),
            ),
        ),
    ),
    (
        ("model", "Model", f'label_values({limits.REQUEST_RATE.name}{{job=~"$job", instance=~"$instance"}}, model)'),
        (
            "version",
            "Version",
            f'label_values({limits.REQUEST_RATE.name}{{job=~"$job", instance=~"$instance", model=~"$model"}}, version)',
        ),
    ),
)
