"""Recording rules: the ratios that several alerts, dashboards and autoscalers use."""

from conch.operate.monitoring.promql import duration
from conch.operate.monitoring.rules.rule import RecordingRule, RuleGroup

QUEUE_COMPUTE = "triton:queue_compute:ratio"  # the name of NVIDIA's tutorial about autoscaling
UTILIZATION = "conch:instance_utilization:ratio_rate1m"
BURN_WINDOWS_S = (300, 1800, 3600, 21600, 259200)
# Requests that the client cancelled do not count as failures.
_FAILURES = 'nv_inference_request_failure{reason!="CANCELED"}'


def failure_ratio(window_s: float) -> str:
    """Return the name of the recorded share of failed requests in a window."""
    return f"conch:request_failure:ratio_rate{duration(window_s)}"


def recording_rules() -> RuleGroup:
    """Return the group of recording rules."""
    return RuleGroup(
        "conch-recorded",
        (
            RecordingRule(
                QUEUE_COMPUTE,
                "rate(nv_inference_queue_duration_us[1m])"
                " / clamp_min(rate(nv_inference_compute_infer_duration_us[1m]), 1)",
            ),
            RecordingRule(UTILIZATION, "rate(conch_instance_busy_seconds_total[1m]) / (conch_instances > 0)"),
            *(RecordingRule(failure_ratio(window_s), _failure_ratio(window_s)) for window_s in BURN_WINDOWS_S),
        ),
    )


def _failure_ratio(window_s: float) -> str:
    window = f"[{duration(window_s)}]"
    failed = f"sum by (model, version) (rate({_FAILURES}{window}))"
    succeeded = f"sum by (model, version) (rate(nv_inference_request_success{window}))"
    return f"{failed} / ({failed} + {succeeded} > 0)"
