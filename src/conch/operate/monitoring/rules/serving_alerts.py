"""Alerts about requests: queue, failures, service level objective, latency, overload."""

from conch.operate.monitoring.promql import duration
from conch.operate.monitoring.rules.recording import QUEUE_COMPUTE, UTILIZATION, failure_ratio
from conch.operate.monitoring.rules.rule import AlertingRule, InputSeries, Proof, RuleGroup, counter, gauge
from conch.operate.monitoring.rules.rule import Severity as RuleSeverity
from conch.operate.monitoring.rules.thresholds import Thresholds

M = {"model": "m", "version": "1", "job": "conch", "instance": "a:8002"}
_MODEL = "model {{ $labels.model }} version {{ $labels.version }}"
# Windows of the burn rate, and how many times faster than allowed the budget is spent: 2 % of 30 days in 1 h, …
_BURNS: tuple[tuple[str, RuleSeverity, int, int, float], ...] = (
    ("ConchErrorBudgetBurnFast", "critical", 3600, 300, 14.4),
    ("ConchErrorBudgetBurn", "critical", 21600, 1800, 6),
    ("ConchErrorBudgetBurnSlow", "warning", 259200, 21600, 1),
)


def request_alerts(limits: Thresholds) -> RuleGroup:
    """Return the alerts about requests."""
    return RuleGroup(
        "conch-requests",
        (
            _queue_time(limits),
            _oldest_request(limits),
            _queue_compute(limits),
            _failures(limits),
            *(_burn(limits, *each) for each in _BURNS),
            _latency(limits),
            _overload(limits),
        ),
    )


def _queue_time(limits: Thresholds) -> AlertingRule:
    limit = limits.queue_time
    return AlertingRule(
        "ConchQueueTimeHigh",
        "warning",
        "sum by (model, version) (rate(nv_inference_queue_duration_us[1m])) / 1e6"
        f" / (sum by (model, version) (rate(nv_inference_request_success[1m])) > 0) > {limit:g}",
        60,
        f"Requests of {_MODEL} wait {{{{ $value | humanizeDuration }}}} for an instance.",
        "Add instances or replicas, or send less.",
        (
            Proof("slow", _queue(limit * 1.2, 300), 300, 1),
            Proof("just under the threshold", _queue(limit * 0.95, 300), 300, 0),
            Proof("not for long enough", _queue(limit * 1.2, 300), 60, 0),
        ),
    )


def _queue(seconds_per_request: float, length_s: float) -> tuple[InputSeries, ...]:
    return (
        counter("nv_inference_request_success", M, (20, length_s)),
        counter("nv_inference_queue_duration_us", M, (20e6 * seconds_per_request, length_s)),
    )


def _oldest_request(limits: Thresholds) -> AlertingRule:
    limit = limits.oldest_request
    return AlertingRule(
        "ConchRequestStuck",
        "critical",
        f"conch_queue_oldest_request_seconds > {limit:g}",
        30,
        f"A request of {_MODEL} has waited {{{{ $value | humanizeDuration }}}} in the queue.",
        "Check the instances of the model: a hanging one shows in conch_instance_busy_seconds_total.",
        (
            Proof("old", (gauge("conch_queue_oldest_request_seconds", M, (limit * 1.1, 120)),), 90, 1),
            Proof(
                "just under the threshold",
                (gauge("conch_queue_oldest_request_seconds", M, (limit * 0.99, 120)),),
                90,
                0,
            ),
            Proof(
                "sent on in time",
                (gauge("conch_queue_oldest_request_seconds", M, (limit * 1.1, 30), (0, 15), (limit * 1.1, 30)),),
                60,
                0,
            ),
        ),
    )


def _queue_compute(limits: Thresholds) -> AlertingRule:
    limit = limits.queue_compute_ratio
    return AlertingRule(
        "ConchQueueComputeRatioHigh",
        "warning",
        f"{QUEUE_COMPUTE} > {limit:g}",
        300,
        f"Requests of {_MODEL} wait {{{{ $value | humanize }}}} times as long as they compute.",
        "Add replicas: the ratio is the signal of the autoscaler.",
        (
            Proof("waiting dominates", _ratio(limit * 1.1, 600), 540, 1),
            Proof("just under the threshold", _ratio(limit * 0.95, 600), 540, 0),
            Proof("a burst of four minutes", (*_ratio(limit * 1.1, 240),), 300, 0),
        ),
    )


def _ratio(ratio: float, length_s: float) -> tuple[InputSeries, ...]:
    return (
        counter("nv_inference_queue_duration_us", M, (4e5 * ratio, length_s), (0, 300)),
        counter("nv_inference_compute_infer_duration_us", M, (4e5, length_s + 300)),
    )


def _failures(limits: Thresholds) -> AlertingRule:
    limit = limits.failure_ratio
    by_model = "sum by (model, version)"
    return AlertingRule(
        "ConchFailureRatioHigh",
        "warning",
        'sum by (model, version, reason) (rate(nv_inference_request_failure{reason!="CANCELED"}[5m]))'
        f" / on (model, version) group_left () ({by_model} (rate(nv_inference_request_failure[5m]))"
        f" + {by_model} (rate(nv_inference_request_success[5m])) > 0) > {limit:g}",
        120,
        f"{{{{ $value | humanizePercentage }}}} of the requests of {_MODEL} fail: {{{{ $labels.reason }}}}.",
        "The log has the errors; reason REJECTED is a full queue, BACKEND an error of the model.",
        (
            Proof("failing", _failing("BACKEND", limit * 1.2, 600), 540, 1),
            Proof("just under the threshold", _failing("BACKEND", limit * 0.95, 600), 540, 0),
            Proof("cancelled by clients", _failing("CANCELED", limit * 2, 600), 540, 0),
        ),
    )


def _failing(reason: str, share: float, length_s: float, interval_s: int = 15) -> tuple[InputSeries, ...]:
    return (
        counter("nv_inference_request_success", M, (10 * (1 - share), length_s), interval_s=interval_s),
        counter("nv_inference_request_failure", {**M, "reason": reason}, (10 * share, length_s), interval_s=interval_s),
    )


def _burn(
    limits: Thresholds, name: str, severity: RuleSeverity, long_s: int, short_s: int, factor: float
) -> AlertingRule:
    budget = 1 - limits.objective
    limit = min(factor * budget, 0.99)
    interval_s = 300 if long_s > 86400 else 60
    failing = _failing("BACKEND", min(limit * 1.2, 1), long_s * 1.2, interval_s)
    nearly = _failing("BACKEND", limit * 0.95, long_s * 1.2, interval_s)
    ended_s = long_s + short_s * 2 + 180
    long, short = failure_ratio(long_s), failure_ratio(short_s)
    return AlertingRule(
        name,
        severity,
        f"{long} > {limit:.6g} and {short} > {limit:.6g}",
        120,
        f"{_MODEL} spends its error budget {factor:g} times too fast: {{{{ $value | humanizePercentage }}}}"
        f" of the requests of the last {duration(long_s)} failed.",
        f"The objective is {limits.objective * 100:g} % of successful requests in 30 days.",
        (
            Proof("failing", failing, long_s * 1.1, 1, interval_s),
            Proof("just under the rate", nearly, long_s * 1.1, 0, interval_s),
            Proof(
                "over: the short window is clean", _ended(limit, long_s, short_s, interval_s), ended_s, 0, interval_s
            ),
        ),
    )


def _ended(limit: float, long_s: int, short_s: int, interval_s: int) -> tuple[InputSeries, ...]:
    """Return failures at a rate that the long window still shows after the short window has no more of them."""
    after = short_s * 2 + 300
    share = min(limit * 3, 1)
    failed = {**M, "reason": "BACKEND"}
    return (
        counter("nv_inference_request_success", M, (10 * (1 - share), long_s), (10, after), interval_s=interval_s),
        counter("nv_inference_request_failure", failed, (10 * share, long_s), (0, after), interval_s=interval_s),
    )


def _latency(limits: Thresholds) -> AlertingRule:
    limit = limits.p99
    return AlertingRule(
        "ConchLatencyBudgetExceeded",
        "warning",
        "histogram_quantile(0.99, sum by (model, version, le) (rate(conch_request_duration_seconds_bucket[5m])))"
        f" > {limit:g}",
        120,
        f"One of 100 requests of {_MODEL} takes longer than {{{{ $value | humanizeDuration }}}}.",
        "conch trace view shows where the time goes; the queue alerts say whether capacity is missing.",
        (
            Proof("slow", _buckets(limit, 0.02), 540, 1),
            Proof("one of 125 is slow", _buckets(limit, 0.008), 540, 0),
            Proof("slow for a minute", _buckets(limit, 0.02, 300), 60, 0),
        ),
    )


def _buckets(limit: float, slow: float, length_s: float = 600) -> tuple[InputSeries, ...]:
    metric = "conch_request_duration_seconds_bucket"
    shares = ((limit / 2, 1 - slow), (limit, 1 - slow), (limit * 2, 1.0), ("+Inf", 1.0))
    return tuple(
        counter(metric, {**M, "le": edge if isinstance(edge, str) else f"{edge:g}"}, (100 * share, length_s))
        for edge, share in shares
    )


def _overload(limits: Thresholds) -> AlertingRule:
    horizon = f"scalar(max(nv_model_load_duration_secs) or vector(0)) + {limits.scale_up:g}"
    threshold = limits.utilization
    # In the proofs models load in 140 s, and the recorded utilization lags by up to 45 s.
    ahead = 140 + limits.scale_up
    return AlertingRule(
        "ConchOverloadPredicted",
        "warning",
        # Ten minutes of data, or the start of a server would be a steep rise.
        f"predict_linear({UTILIZATION}[10m], {horizon}) > {threshold:g}"
        f" and {UTILIZATION} > {threshold / 2:.3g} and {UTILIZATION} offset 10m",
        60,
        f"{_MODEL} is overloaded by the time that a new replica is ready.",
        "Scale up now, or let the autoscaler use conch:instance_utilization:ratio_rate1m.",
        (
            Proof(
                "rises to the limit within the cold start",
                _busy(threshold * 0.3, threshold * 0.7 / (435 + ahead)),
                1245,
                1,
            ),
            Proof("busy, but steady", _busy(threshold * 0.97, 0), 1245, 0),
            Proof("rises too slowly", _busy(threshold * 0.3, threshold * 0.63 / (645 + ahead)), 1245, 0),
        ),
    )


def _busy(first: float, rise_per_s: float) -> tuple[InputSeries, ...]:
    """Return the series of one instance whose utilization rises evenly after ten minutes."""
    busy, samples = 0.0, []
    for index in range(-40, 45):
        samples.append(f"{busy:.6f}")
        busy += 15 * min(first + rise_per_s * 15 * max(index, 0), 1)
    return (
        InputSeries(counter("conch_instance_busy_seconds_total", M).series, " ".join(samples)),
        gauge("conch_instances", M, (1, 1275)),
        gauge("nv_model_load_duration_secs", M, (140, 1275)),
    )
