"""Check the files for monitoring: rules, dashboards, monitors, limits and autoscalers."""

from collections.abc import Iterator, Sequence

from conch.check.finding import Finding
from conch.check.monitoring.autoscalers import check_autoscalers
from conch.check.monitoring.limits import check_limits
from conch.check.monitoring.monitors import check_monitors
from conch.check.monitoring.objects import MonitoringObject
from conch.check.monitoring.queries import check_queries
from conch.check.served import Served
from conch.check.source import SourceFile


def check_monitoring(
    sources: Sequence[SourceFile], objects: Sequence[MonitoringObject], served: Served
) -> Iterator[Finding]:
    """Check the files of a path together: monitors select Services of other files, and alerts use their records."""
    yield from check_limits(sources, objects, served.models)
    yield from check_monitors(objects)
    recorded, findings = check_queries(objects, served.metrics)
    yield from findings
    yield from check_autoscalers(objects, recorded)
