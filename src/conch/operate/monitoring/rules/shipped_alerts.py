"""The shipped rules: recorded ratios, and alerts, each with series that fire it and series that nearly do."""

from conch.operate.monitoring.promql import LabelMatcher, Selector, duration, render
from conch.operate.monitoring.rules.rule import (
    AlertingRule,
    InputSeries,
    Proof,
    RecordingRule,
    RuleGroup,
    counter,
    gauge,
)
from conch.operate.monitoring.rules.rule import Severity as RuleSeverity
from conch.operate.monitoring.rules.thresholds import Thresholds

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
            _request_latency(limits),
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


def _request_latency(limits: Thresholds) -> AlertingRule:
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


_TENANT = {**M, "tenant": "t"}
_SOFT, _ENFORCED = {**_TENANT, "enforced": "false"}, {**_TENANT, "enforced": "true"}
# The label "_all" stands for all tenants, models or versions together; requests without a tenant have "".
_OF = (
    '{{ if and $labels.tenant (ne $labels.tenant "_all") }}tenant {{ $labels.tenant }} of {{ end }}'
    '{{ if eq $labels.model "_all" }}the server{{ else }}model {{ $labels.model }}'
    '{{ if ne $labels.version "_all" }} version {{ $labels.version }}{{ end }}{{ end }}'
)
_LIMIT_SOURCE = {"job": "conch", "instance": "a:8002", "source": "kubernetes"}


def limit_alerts() -> RuleGroup:
    """Return the alerts about limits."""
    return RuleGroup(
        "conch-limits",
        (
            *_above_limit("ConchRequestRate", "conch_request_rate", "requests"),
            *_above_limit("ConchTokenRate", "conch_token_rate", "tokens"),
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
                    Proof("changed", (gauge("conch_limit_changes_total", _LIMIT_SOURCE, (3, 600), (4, 60)),), 630, 1),
                    Proof(
                        "first change",
                        (gauge("conch_limit_changes_total", _LIMIT_SOURCE, (None, 600), (1, 60)),),
                        630,
                        1,
                    ),
                    Proof("long ago", (gauge("conch_limit_changes_total", _LIMIT_SOURCE, (3, 60), (4, 600)),), 600, 0),
                    Proof(
                        "a server started",
                        (gauge("conch_limit_changes_total", _LIMIT_SOURCE, (None, 600), (0, 60)),),
                        630,
                        0,
                    ),
                ),
            ),
        ),
    )


def _above_limit(name: str, metric: str, what: str) -> tuple[AlertingRule, AlertingRule]:
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


_SCRAPED = {"job": "conch", "instance": "a:8002"}


def availability_alerts(limits: Thresholds, jobs: str) -> RuleGroup:
    """Return the alerts about availability. `jobs` is a regular expression of the scrape jobs of Conch."""
    return RuleGroup(
        "conch-availability",
        (
            AlertingRule(
                "ConchTargetDown",
                "critical",
                f"{render(Selector('up', (LabelMatcher('job', '=~', jobs),)))} == 0",
                60,
                "{{ $labels.instance }} of job {{ $labels.job }} does not answer scrapes.",
                "Check the process, its metrics port and the network between Prometheus and it.",
                (
                    Proof("down", (gauge("up", _SCRAPED, (1, 60), (0, 120)),), 150, 1),
                    Proof("one scrape failed", (gauge("up", _SCRAPED, (1, 60), (0, 15), (1, 120)),), 150, 0),
                    Proof("another job is down", (gauge("up", {**_SCRAPED, "job": "node"}, (0, 180)),), 150, 0),
                ),
            ),
            _unready(limits),
            _restarting(limits),
            AlertingRule(
                "ConchModelStuck",
                "critical",
                "sum by (model, version) (conch_queue_depth) > 0 unless"
                " sum by (model, version) (rate(nv_inference_exec_count[5m])) > 0",
                300,
                f"Requests of {_MODEL} wait, and it has executed none for five minutes.",
                "The instances hang or are dead; reload the model, and look for its processes in the log.",
                (
                    Proof("stuck", (gauge("conch_queue_depth", M, (3, 720)), _executions(720, 0)), 660, 1),
                    Proof("slow", (gauge("conch_queue_depth", M, (3, 720)), _executions(720, 0.01)), 660, 0),
                    Proof("idle", (gauge("conch_queue_depth", M, (0, 720)), _executions(720, 0)), 660, 0),
                ),
            ),
            *_helpers_down(),
        ),
    )


def _executions(length_s: float, per_s: float) -> InputSeries:
    return counter("nv_inference_exec_count", M, (per_s, length_s))


def _unready(limits: Thresholds) -> AlertingRule:
    for_s = limits.unready
    metric = "conch_model_ready"
    return AlertingRule(
        "ConchModelUnready",
        "critical",
        f"{metric} == 0",
        for_s,
        f"{_MODEL} is not ready on {{{{ $labels.instance }}}}.",
        "The log of the server has the reason; conch repo list shows the state of each model.",
        (
            Proof("unready", (gauge(metric, M, (1, 60), (0, for_s + 60)),), for_s + 90, 1),
            Proof("loads in time", (gauge(metric, M, (0, for_s - 15), (1, 120)),), for_s + 60, 0),
            Proof("ready", (gauge(metric, M, (1, for_s + 120)),), for_s + 90, 0),
        ),
    )


def _restarting(limits: Thresholds) -> AlertingRule:
    count = limits.restarts
    metric = "conch_process_restarts_total"
    return AlertingRule(
        "ConchModelRestarting",
        "warning",
        # The difference instead of an increase, which extrapolates: a count equal to the threshold is not an alert.
        f"{metric} - ({metric} offset 10m) > {count:g} or ({metric} unless {metric} offset 10m) > {count:g}",
        0,
        f"Processes of {_MODEL} were restarted {{{{ $value }}}} times in ten minutes.",
        "The log has the signal or the error of each exit.",
        (
            Proof("restarts", (gauge(metric, M, (4, 600), (4 + count + 1, 300)),), 720, 1),
            Proof("one fewer", (gauge(metric, M, (4, 600), (4 + count, 300)),), 720, 0),
            Proof("restarts since the first scrape", (gauge(metric, M, (0, 15), (count + 1, 300)),), 300, 1),
            Proof("long ago", (gauge(metric, M, (4, 60), (4 + count + 1, 900)),), 900, 0),
        ),
    )


def _helpers_down() -> tuple[AlertingRule, ...]:
    collector, tunnel = {**_SCRAPED, "vendor": "nvidia"}, {**_SCRAPED, "target": "gpu1"}
    device = {**collector, "device": "nvidia0", "uuid": "GPU-1", "name": "H100"}
    receiver, source = {**_SCRAPED, "target": "dingtalk"}, {**_SCRAPED, "source": "kubernetes"}
    return (
        _is_zero(
            "ConchAcceleratorCollectorDown",
            "conch_accelerator_collector_up",
            collector,
            120,
            "{{ $labels.instance }} has no samples of accelerators (vendor: {{ $labels.vendor }}).",
            "The log of the exporter has the error of the driver, or the driver or tool that it did not find.",
        ),
        _is_zero(
            "ConchAcceleratorLost",
            "conch_accelerator_device_up",
            device,
            60,
            "{{ $labels.name }} {{ $labels.device }} on {{ $labels.instance }} no longer answers.",
            "Move its models; the kernel log has the last XID. A lost GPU needs a restart of the node.",
        ),
        _is_zero(
            "ConchTunnelDown",
            "conch_tunnel_up",
            tunnel,
            120,
            "The tunnel to {{ $labels.target }} is down.",
            "conch_tunnel_failures_total has the reasons; a changed host key is refused until it is accepted.",
        ),
        _is_zero(
            "ConchLimitSourceDown",
            "conch_limit_source_up",
            source,
            120,
            "The source {{ $labels.source }} of limits is unreachable; the last limits stay in force.",
            "Check the file or the Kubernetes API server.",
        ),
        AlertingRule(
            "ConchAlertsUndelivered",
            "warning",
            "min_over_time(conch_alerts_queued[10m]) > 0",
            300,
            "Alerts for {{ $labels.target }} have waited for more than ten minutes.",
            "conch_alerts_failed_attempts_total counts the attempts; the log of the receiver has the answers.",
            (
                Proof("waiting", (gauge("conch_alerts_queued", receiver, (0, 60), (1, 1200)),), 1200, 1),
                Proof(
                    "delivered once in between",
                    (gauge("conch_alerts_queued", receiver, (1, 540), (0, 15), (1, 540)),),
                    1080,
                    0,
                ),
            ),
        ),
    )


def _is_zero(name: str, metric: str, labels: dict[str, str], for_s: float, summary: str, remedy: str) -> AlertingRule:
    return AlertingRule(
        name,
        "warning",
        f"{metric} == 0",
        for_s,
        summary,
        remedy,
        (
            Proof("down", (gauge(metric, labels, (1, 60), (0, for_s + 60)),), for_s + 90, 1),
            Proof("back in time", (gauge(metric, labels, (0, for_s - 15), (1, 120)),), for_s + 60, 0),
        ),
    )


_ENGINE = {"model_name": "m", "engine": "0", "version": "1", "job": "conch", "instance": "a:8002"}
_DEVICE = {
    "vendor": "nvidia",
    "device": "nvidia0",
    "uuid": "GPU-6fe85c78",
    "name": "NVIDIA A800",
    "job": "gpu-exporter",
    "instance": "a:9400",
}
_LANGUAGE_MODEL = "model {{ $labels.model_name }} version {{ $labels.version }}"
_GPU = "{{ $labels.name }} {{ $labels.device }} on {{ $labels.instance }}"


def language_model_alerts(limits: Thresholds) -> RuleGroup:
    """Return the alerts about language models."""
    return RuleGroup(
        "conch-language-models",
        (
            _above_threshold(
                "ConchKvCacheFull",
                ("vllm:kv_cache_usage_perc", _ENGINE),
                limits.kv_cache,
                300,
                f"{{{{ $value | humanizePercentage }}}} of the KV cache of {_LANGUAGE_MODEL} is in use.",
                "Requests are preempted soon; add replicas, memory for the cache, or lower max_num_seqs.",
            ),
            _above_threshold(
                "ConchRequestsWaitingForEngine",
                ("vllm:num_requests_waiting", _ENGINE),
                limits.waiting_requests,
                300,
                f"{{{{ $value }}}} requests of {_LANGUAGE_MODEL} wait for the engine.",
                "Add replicas; the alert ConchKvCacheFull shows whether memory is missing.",
            ),
            _first_token(limits),
        ),
    )


def accelerator_alerts(limits: Thresholds) -> RuleGroup:
    """Return the alerts about accelerators."""
    return RuleGroup(
        "conch-accelerators",
        (
            _above_threshold(
                "ConchAcceleratorHot",
                ("conch_accelerator_temperature_celsius", _DEVICE),
                limits.gpu_temperature,
                300,
                f"{_GPU} has {{{{ $value }}}} °C.",
                "Check fans, air flow and power limit; the clocks drop when it throttles.",
            ),
            _idle(limits),
            _errors(),
            _memory(limits),
        ),
    )


def _above_threshold(
    name: str, of: tuple[str, dict[str, str]], limit: float, for_s: float, summary: str, remedy: str
) -> AlertingRule:
    metric, labels = of
    return AlertingRule(
        name,
        "warning",
        f"{metric} > {limit:g}",
        for_s,
        summary,
        remedy,
        (
            Proof("above", (gauge(metric, labels, (limit * 1.05, for_s + 120)),), for_s + 60, 1),
            Proof("at the threshold", (gauge(metric, labels, (limit, for_s + 120)),), for_s + 60, 0),
            Proof(
                "not for long enough",
                (gauge(metric, labels, (limit * 1.05, for_s - 30), (limit * 0.9, 15), (limit * 1.05, 120)),),
                for_s + 60,
                0,
            ),
        ),
    )


def _first_token(limits: Thresholds) -> AlertingRule:
    limit = limits.ttft
    return AlertingRule(
        "ConchTimeToFirstTokenHigh",
        "warning",
        "histogram_quantile(0.95, sum by (model_name, version, le)"
        f" (rate(vllm:time_to_first_token_seconds_bucket[5m]))) > {limit:g}",
        120,
        f"One of 20 requests of {_LANGUAGE_MODEL} waits longer than {{{{ $value | humanizeDuration }}}}"
        " for its first token.",
        "Prompts are long or the engine is full: see the alerts about waiting requests and the KV cache.",
        (
            Proof("slow", _first_tokens(limit, 0.08), 540, 1),
            Proof("one of 25 is slow", _first_tokens(limit, 0.04), 540, 0),
        ),
    )


def _first_tokens(limit: float, slow: float) -> tuple[InputSeries, ...]:
    shares = ((f"{limit / 2:g}", 1 - slow), (f"{limit:g}", 1 - slow), (f"{limit * 2:g}", 1.0), ("+Inf", 1.0))
    metric = "vllm:time_to_first_token_seconds_bucket"
    return tuple(counter(metric, {**_ENGINE, "le": edge}, (50 * share, 600)) for edge, share in shares)


def _idle(limits: Thresholds) -> AlertingRule:
    share, window_s = limits.gpu_idle, limits.gpu_idle_time
    metric = "conch_accelerator_utilization_ratio"
    window = duration(window_s)
    long = window_s * 1.5
    return AlertingRule(
        "ConchAcceleratorIdle",
        "info",
        # Only after the accelerator has been observed for the whole time.
        f"avg_over_time({metric}[{window}]) < {share:g} and {metric} offset {window}",
        0,
        f"{_GPU} was used {{{{ $value | humanizePercentage }}}} of the last {window}.",
        "Use a smaller or shared accelerator, more models on this one, or fewer replicas.",
        (
            Proof("idle", (gauge(metric, _DEVICE, (share * 0.95, long)),), window_s * 1.2, 1),
            Proof("busy enough", (gauge(metric, _DEVICE, (share * 1.05, long)),), window_s * 1.2, 0),
            Proof("not for long enough", (gauge(metric, _DEVICE, (0, long)),), window_s * 0.9, 0),
        ),
    )


def _errors() -> AlertingRule:
    metric = "conch_accelerator_errors_total"
    labels = {**_DEVICE, "code": "79"}
    return AlertingRule(
        "ConchAcceleratorError",
        "critical",
        # A counter that appears with its first error has no increase: compare it with its own past.
        f"{metric} > {metric} offset 5m or ({metric} unless {metric} offset 5m) > 0",
        0,
        f"{_GPU} reports error {{{{ $labels.code }}}}.",
        "Look the code up in the vendor's list; for NVIDIA, XID 79 is a GPU that has fallen off the bus.",
        (
            Proof("another error", (gauge(metric, labels, (3, 600), (4, 60)),), 630, 1),
            Proof("first error", (gauge(metric, labels, (None, 600), (1, 60)),), 630, 1),
            Proof("long ago", (gauge(metric, labels, (3, 60), (4, 600)),), 600, 0),
            Proof("none", (gauge(metric, labels, (None, 600), (0, 60)),), 630, 0),
        ),
    )


def _memory(limits: Thresholds) -> AlertingRule:
    share = limits.gpu_memory
    total = gauge("conch_accelerator_memory_total_bytes", _DEVICE, (40e9, 600))
    metric = "conch_accelerator_memory_used_bytes"
    return AlertingRule(
        "ConchAcceleratorMemoryFull",
        "warning",
        f"{metric} / conch_accelerator_memory_total_bytes > {share:g}",
        300,
        f"{{{{ $value | humanizePercentage }}}} of the memory of {_GPU} is in use.",
        "conch_accelerator_model_memory_bytes shows which model uses it.",
        (
            Proof("full", (gauge(metric, _DEVICE, (40e9 * min(share * 1.02, 1), 600)), total), 540, 1),
            Proof("just under the threshold", (gauge(metric, _DEVICE, (40e9 * share * 0.99, 600)), total), 540, 0),
        ),
    )


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
