"""All rules."""

from conch.operate.monitoring.rules.availability_alerts import availability_alerts
from conch.operate.monitoring.rules.engine_alerts import accelerator_alerts, language_model_alerts
from conch.operate.monitoring.rules.limit_alerts import limit_alerts
from conch.operate.monitoring.rules.recording import recording_rules
from conch.operate.monitoring.rules.rule import RuleGroup
from conch.operate.monitoring.rules.serving_alerts import request_alerts
from conch.operate.monitoring.rules.thresholds import Thresholds

# Scrape jobs of servers and exporters, a regular expression.
DEFAULT_JOBS = "conch|triton|gpu-exporter"


def rule_groups(thresholds: Thresholds, jobs: str = DEFAULT_JOBS) -> tuple[RuleGroup, ...]:
    """Return all rules, with those first whose records the others use."""
    return (
        recording_rules(),
        request_alerts(thresholds),
        limit_alerts(),
        availability_alerts(thresholds, jobs),
        language_model_alerts(thresholds),
        accelerator_alerts(thresholds),
    )
