"""The shipped rules: recorded ratios, and alerts, each with series that fire it and series that nearly do."""

from collections.abc import Iterator

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
from conch.operate.monitoring.rules.thresholds import DEFAULT_JOBS, Thresholds

QUEUE_COMPUTE = "triton:queue_compute:ratio"  # the name of NVIDIA's tutorial about autoscaling
UTILIZATION = "conch:instance_utilization:ratio_rate1m"
# Windows of the burn rate, and how many times faster than allowed the budget is spent: 2 % of 30 days in 1 h, …
_BURNS: tuple[tuple[str, RuleSeverity, int, int, float], ...] = (
    ("ConchErrorBudgetBurnFast", "critical", 3600, 300, 14.4),
    ("ConchErrorBudgetBurn", "critical", 21600, 1800, 6),
    ("ConchErrorBudgetBurnSlow", "warning", 259200, 21600, 1),
)
# Requests that the client cancelled do not count as failures.
_FAILED = 'nv_inference_request_failure{reason!="CANCELED"}'
_BY_MODEL = "sum by (model, version)"

# The texts that name the subject of an alert, and the labels of the series in proofs.
_MODEL = "model {{ $labels.model }} version {{ $labels.version }}"
_LANGUAGE_MODEL = "model {{ $labels.model_name }} version {{ $labels.version }}"
_GPU = "{{ $labels.name }} {{ $labels.device }} on {{ $labels.instance }}"
# The label "_all" stands for all tenants, models or versions together; requests without a tenant have "".
_LIMITED = (
    '{{ if and $labels.tenant (ne $labels.tenant "_all") }}tenant {{ $labels.tenant }} of {{ end }}'
    '{{ if eq $labels.model "_all" }}the server{{ else }}model {{ $labels.model }}'
    '{{ if ne $labels.version "_all" }} version {{ $labels.version }}{{ end }}{{ end }}'
)
_SCRAPED = {"job": "conch", "instance": "a:8002"}
_OF_MODEL = {"model": "m", "version": "1", **_SCRAPED}
_OF_ENGINE = {"model_name": "m", "engine": "0", "version": "1", **_SCRAPED}
_OF_TENANT = {**_OF_MODEL, "tenant": "t"}
_OF_SOFT_LIMIT, _OF_ENFORCED_LIMIT = {**_OF_TENANT, "enforced": "false"}, {**_OF_TENANT, "enforced": "true"}
_OF_DEVICE = {
    "vendor": "nvidia",
    "device": "nvidia0",
    "uuid": "GPU-6fe85c78",
    "name": "NVIDIA A800",
    "job": "gpu-exporter",
    "instance": "a:9400",
}


def rule_groups(thresholds: Thresholds, jobs: str = DEFAULT_JOBS) -> tuple[RuleGroup, ...]:
    """Return all rules, with those first whose records the others use. `jobs` matches the scrape jobs of Conch."""
    return (
        recording_rules(),
        RuleGroup("conch-requests", tuple(_request_alerts(thresholds))),
        RuleGroup("conch-limits", tuple(_limit_alerts())),
        RuleGroup("conch-availability", tuple(_availability_alerts(thresholds, jobs))),
        RuleGroup("conch-language-models", tuple(_language_model_alerts(thresholds))),
        RuleGroup("conch-accelerators", tuple(_accelerator_alerts(thresholds))),
    )


def recording_rules() -> RuleGroup:
    """Return the recording rules: the ratios that several alerts, dashboards and autoscalers use."""
    windows = sorted({window_s for _, _, *both, _ in _BURNS for window_s in both})
    return RuleGroup(
        "conch-recorded",
        (
            RecordingRule(
                QUEUE_COMPUTE,
                "rate(nv_inference_queue_duration_us[1m])"
                " / clamp_min(rate(nv_inference_compute_infer_duration_us[1m]), 1)",
            ),
            RecordingRule(UTILIZATION, "rate(conch_instance_busy_seconds_total[1m]) / (conch_instances > 0)"),
            *(RecordingRule(_failure_ratio(window_s), _share_of_failures(window_s)) for window_s in windows),
        ),
    )


def _failure_ratio(window_s: float) -> str:
    """Return the name of the recorded share of failed requests in a window."""
    return f"conch:request_failure:ratio_rate{duration(window_s)}"


def _share_of_failures(window_s: float) -> str:
    window = f"[{duration(window_s)}]"
    failed = f"{_BY_MODEL} (rate({_FAILED}{window}))"
    return f"{failed} / ({failed} + {_BY_MODEL} (rate(nv_inference_request_success{window})) > 0)"


# Requests: queue, failures, service level objective, latency, overload


def _request_alerts(limits: Thresholds) -> Iterator[AlertingRule]:
    limit = limits.queue_time
    yield AlertingRule(
        "ConchQueueTimeHigh",
        "warning",
        f"{_BY_MODEL} (rate(nv_inference_queue_duration_us[1m])) / 1e6"
        f" / ({_BY_MODEL} (rate(nv_inference_request_success[1m])) > 0) > {limit:g}",
        60,
        f"Requests of {_MODEL} wait {{{{ $value | humanizeDuration }}}} for an instance.",
        "Add instances or replicas, or send less.",
        (
            Proof("slow", _queue(limit * 1.2), 300, 1),
            Proof("just under the threshold", _queue(limit * 0.95), 300, 0),
            Proof("not for long enough", _queue(limit * 1.2), 60, 0),
        ),
    )
    limit, metric = limits.oldest_request, "conch_queue_oldest_request_seconds"
    old = (limit * 1.1, 30)
    yield AlertingRule(
        "ConchRequestStuck",
        "critical",
        f"{metric} > {limit:g}",
        30,
        f"A request of {_MODEL} has waited {{{{ $value | humanizeDuration }}}} in the queue.",
        "Check the instances of the model: a hanging one shows in conch_instance_busy_seconds_total.",
        (
            Proof("old", (gauge(metric, _OF_MODEL, (limit * 1.1, 120)),), 90, 1),
            Proof("just under the threshold", (gauge(metric, _OF_MODEL, (limit * 0.99, 120)),), 90, 0),
            Proof("sent on in time", (gauge(metric, _OF_MODEL, old, (0, 15), old),), 60, 0),
        ),
    )
    limit = limits.queue_compute_ratio
    yield AlertingRule(
        "ConchQueueComputeRatioHigh",
        "warning",
        f"{QUEUE_COMPUTE} > {limit:g}",
        300,
        f"Requests of {_MODEL} wait {{{{ $value | humanize }}}} times as long as they compute.",
        "Add replicas: the ratio is the signal of the autoscaler.",
        (
            Proof("waiting dominates", _ratio(limit * 1.1, 600), 540, 1),
            Proof("just under the threshold", _ratio(limit * 0.95, 600), 540, 0),
            Proof("a burst of four minutes", _ratio(limit * 1.1, 240), 300, 0),
        ),
    )
    limit = limits.failure_ratio
    yield AlertingRule(
        "ConchFailureRatioHigh",
        "warning",
        f"sum by (model, version, reason) (rate({_FAILED}[5m]))"
        f" / on (model, version) group_left () ({_BY_MODEL} (rate(nv_inference_request_failure[5m]))"
        f" + {_BY_MODEL} (rate(nv_inference_request_success[5m])) > 0) > {limit:g}",
        120,
        f"{{{{ $value | humanizePercentage }}}} of the requests of {_MODEL} fail: {{{{ $labels.reason }}}}.",
        "The log has the errors; reason REJECTED is a full queue, BACKEND an error of the model.",
        (
            Proof("failing", _failing(limit * 1.2, 600), 540, 1),
            Proof("just under the threshold", _failing(limit * 0.95, 600), 540, 0),
            Proof("cancelled by clients", _failing(limit * 2, 600, reason="CANCELED"), 540, 0),
        ),
    )
    yield from (_budget_burn(limits.objective, *burn) for burn in _BURNS)
    limit, metric = limits.p99, "conch_request_duration_seconds_bucket"
    yield AlertingRule(
        "ConchLatencyBudgetExceeded",
        "warning",
        f"histogram_quantile(0.99, sum by (model, version, le) (rate({metric}[5m]))) > {limit:g}",
        120,
        f"One of 100 requests of {_MODEL} takes longer than {{{{ $value | humanizeDuration }}}}.",
        "conch trace view shows where the time goes; the queue alerts say whether capacity is missing.",
        (
            Proof("slow", _buckets(metric, _OF_MODEL, limit, 2 / 100, 100), 540, 1),
            Proof("one of 125 is slow", _buckets(metric, _OF_MODEL, limit, 1 / 125, 100), 540, 0),
            Proof("slow for a minute", _buckets(metric, _OF_MODEL, limit, 2 / 100, 100, 300), 60, 0),
        ),
    )
    limit = limits.utilization
    # In the proofs models load in 140 s, and the recorded utilization lags by up to 45 s.
    ahead = 140 + limits.scale_up
    horizon = f"scalar(max(nv_model_load_duration_secs) or vector(0)) + {limits.scale_up:g}"
    in_time, too_slow = limit * 0.7 / (435 + ahead), limit * 0.63 / (645 + ahead)
    yield AlertingRule(
        "ConchOverloadPredicted",
        "warning",
        # Ten minutes of data, or the start of a server would be a steep rise.
        f"predict_linear({UTILIZATION}[10m], {horizon}) > {limit:g}"
        f" and {UTILIZATION} > {limit / 2:.3g} and {UTILIZATION} offset 10m",
        60,
        f"{_MODEL} is overloaded by the time that a new replica is ready.",
        f"Scale up now, or let the autoscaler use {UTILIZATION}.",
        (
            Proof("rises to the limit within the cold start", _busy(limit * 0.3, in_time), 1245, 1),
            Proof("busy, but steady", _busy(limit * 0.97, 0), 1245, 0),
            Proof("rises too slowly", _busy(limit * 0.3, too_slow), 1245, 0),
        ),
    )


def _budget_burn(
    objective: float, name: str, severity: RuleSeverity, long_s: int, short_s: int, factor: float
) -> AlertingRule:
    limit = min(factor * (1 - objective), 0.99)
    interval_s = 300 if long_s > 86400 else 60
    failing = _failing(min(limit * 1.2, 1), long_s * 1.2, interval_s)
    nearly = _failing(limit * 0.95, long_s * 1.2, interval_s)
    # The long window still shows these failures after the short window has no more of them.
    ended = _failing(min(limit * 3, 1), long_s, interval_s, then_s=short_s * 2 + 300)
    return AlertingRule(
        name,
        severity,
        f"{_failure_ratio(long_s)} > {limit:.6g} and {_failure_ratio(short_s)} > {limit:.6g}",
        120,
        f"{_MODEL} spends its error budget {factor:g} times too fast: {{{{ $value | humanizePercentage }}}}"
        f" of the requests of the last {duration(long_s)} failed.",
        f"The objective is {objective * 100:g} % of successful requests in 30 days.",
        (
            Proof("failing", failing, long_s * 1.1, 1, interval_s),
            Proof("just under the rate", nearly, long_s * 1.1, 0, interval_s),
            Proof("over: the short window is clean", ended, long_s + short_s * 2 + 180, 0, interval_s),
        ),
    )


def _queue(seconds_per_request: float) -> tuple[InputSeries, ...]:
    return (
        counter("nv_inference_request_success", _OF_MODEL, (20, 300)),
        counter("nv_inference_queue_duration_us", _OF_MODEL, (20e6 * seconds_per_request, 300)),
    )


def _ratio(ratio: float, length_s: float) -> tuple[InputSeries, ...]:
    return (
        counter("nv_inference_queue_duration_us", _OF_MODEL, (4e5 * ratio, length_s), (0, 300)),
        counter("nv_inference_compute_infer_duration_us", _OF_MODEL, (4e5, length_s + 300)),
    )


def _failing(
    share: float, length_s: float, interval_s: int = 15, *, then_s: float = 0, reason: str = "BACKEND"
) -> tuple[InputSeries, ...]:
    """Return ten requests a second of which a share fails, and `then_s` without failures."""
    succeeded, failed = [(10 * (1 - share), length_s)], [(10 * share, length_s)]
    if then_s:
        succeeded.append((10, then_s))
        failed.append((0, then_s))
    labels = {**_OF_MODEL, "reason": reason}
    return (
        counter("nv_inference_request_success", _OF_MODEL, *succeeded, interval_s=interval_s),
        counter("nv_inference_request_failure", labels, *failed, interval_s=interval_s),
    )


def _buckets(
    metric: str, labels: dict[str, str], limit: float, slow: float, per_s: float, length_s: float = 600
) -> tuple[InputSeries, ...]:
    """Return a histogram in which a share of the observations is above a limit."""
    shares = ((f"{limit / 2:g}", 1 - slow), (f"{limit:g}", 1 - slow), (f"{limit * 2:g}", 1.0), ("+Inf", 1.0))
    return tuple(counter(metric, {**labels, "le": edge}, (per_s * share, length_s)) for edge, share in shares)


def _busy(first: float, rise_per_s: float) -> tuple[InputSeries, ...]:
    """Return the series of one instance whose utilization rises evenly after ten minutes."""
    busy, samples = 0.0, []
    for index in range(-40, 45):
        samples.append(f"{busy:.6f}")
        busy += 15 * min(first + rise_per_s * 15 * max(index, 0), 1)
    return (
        InputSeries(counter("conch_instance_busy_seconds_total", _OF_MODEL).series, " ".join(samples)),
        gauge("conch_instances", _OF_MODEL, (1, 1275)),
        gauge("nv_model_load_duration_secs", _OF_MODEL, (140, 1275)),
    )


# Limits of requests and tokens per second


def _limit_alerts() -> Iterator[AlertingRule]:
    yield from _rate_alerts("ConchRequestRate", "conch_request_rate", "requests")
    yield from _rate_alerts("ConchTokenRate", "conch_token_rate", "tokens")
    metric = "conch_limit_exceeded_total"
    yield AlertingRule(
        "ConchRequestsRejectedByLimit",
        "warning",
        f'sum by (model, version, tenant) (rate({metric}{{enforced="true"}}[2m])) > 0',
        60,
        f"Requests of {_LIMITED} are rejected: {{{{ $value | humanize }}}} a second.",
        "Raise the limit, or ask the clients to send less.",
        (
            Proof("rejecting", (counter(metric, _OF_ENFORCED_LIMIT, (0.2, 240)),), 180, 1),
            Proof("the limit is soft", (counter(metric, _OF_SOFT_LIMIT, (9, 240)),), 180, 0),
            Proof("over", (counter(metric, _OF_ENFORCED_LIMIT, (9, 60), (0, 240)),), 240, 0),
        ),
    )
    yield _has_grown(
        "ConchLimitChanged",
        "info",
        ("conch_limit_changes_total", {**_SCRAPED, "source": "kubernetes"}),
        "A limit was changed through {{ $labels.source }}.",
        "conch audit verify checks the log of changes, which has who, what, before and after.",
        ("changed", "first change", "long ago", "a server started"),
    )


def _rate_alerts(name: str, metric: str, what: str) -> Iterator[AlertingRule]:
    """Yield the alerts for a rate above its limit, and for bursts that the rate of a scrape does not show."""
    # A tenant may have a soft and an enforced limit: the lower one counts.
    limit = f"min without (enforced) ({metric}_limit)"
    allowed = gauge(f"{metric}_limit", _OF_SOFT_LIMIT, (100, 120))
    other = gauge(f"{metric}_limit", {**_OF_SOFT_LIMIT, "model": "another"}, (100, 120))
    above = gauge(metric, _OF_TENANT, (120, 120))
    yield AlertingRule(
        f"{name}AboveLimit",
        "critical",
        f"{metric} > {limit}",
        30,
        f"{{{{ $value | humanize }}}} {what} a second of {_LIMITED} are above the limit.",
        "Scale up or throttle; conch_request_rate_limit has the limit in force.",
        (
            Proof("above", (above, allowed), 90, 1),
            Proof("at the limit", (gauge(metric, _OF_TENANT, (100, 120)), allowed), 90, 0),
            Proof("not for long enough", (gauge(metric, _OF_TENANT, (120, 30), (99, 90)), allowed), 90, 0),
            Proof("above the limit of another model", (above, other), 90, 0),
        ),
    )
    peak = f"{metric}_peak"
    yield AlertingRule(
        f"{name}Burst",
        "warning",
        f"{peak} > 1.2 * {limit}",
        0,
        f"A burst of {{{{ $value | humanize }}}} {what} a second of {_LIMITED} was far above the limit.",
        "The average between scrapes hides bursts; smooth the arrivals or leave headroom.",
        (
            Proof("burst", (gauge(peak, _OF_TENANT, (125, 15), (50, 60)), allowed), 0, 1),
            Proof("a little above the limit", (gauge(peak, _OF_TENANT, (119, 90)), allowed), 60, 0),
        ),
    )


# What is dead, restarting, unready or unreachable: servers, models, exporters, tunnels, receivers


def _availability_alerts(limits: Thresholds, jobs: str) -> Iterator[AlertingRule]:
    yield AlertingRule(
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
    )
    for_s, metric = limits.unready, "conch_model_ready"
    yield AlertingRule(
        "ConchModelUnready",
        "critical",
        f"{metric} == 0",
        for_s,
        f"{_MODEL} is not ready on {{{{ $labels.instance }}}}.",
        "The log of the server has the reason; conch repo list shows the state of each model.",
        (
            Proof("unready", (gauge(metric, _OF_MODEL, (1, 60), (0, for_s + 60)),), for_s + 90, 1),
            Proof("loads in time", (gauge(metric, _OF_MODEL, (0, for_s - 15), (1, 120)),), for_s + 60, 0),
            Proof("ready", (gauge(metric, _OF_MODEL, (1, for_s + 120)),), for_s + 90, 0),
        ),
    )
    count, metric = limits.restarts, "conch_process_restarts_total"
    yield AlertingRule(
        "ConchModelRestarting",
        "warning",
        # The difference instead of an increase, which extrapolates: a count equal to the threshold is not an alert.
        f"{metric} - ({metric} offset 10m) > {count:g} or ({metric} unless {metric} offset 10m) > {count:g}",
        0,
        f"Processes of {_MODEL} were restarted {{{{ $value }}}} times in ten minutes.",
        "The log has the signal or the error of each exit.",
        (
            Proof("restarts", (gauge(metric, _OF_MODEL, (4, 600), (4 + count + 1, 300)),), 720, 1),
            Proof("one fewer", (gauge(metric, _OF_MODEL, (4, 600), (4 + count, 300)),), 720, 0),
            Proof("restarts since the first scrape", (gauge(metric, _OF_MODEL, (0, 15), (count + 1, 300)),), 300, 1),
            Proof("long ago", (gauge(metric, _OF_MODEL, (4, 60), (4 + count + 1, 900)),), 900, 0),
        ),
    )
    waiting = gauge("conch_queue_depth", _OF_MODEL, (3, 720))
    hanging, slow = (counter("nv_inference_exec_count", _OF_MODEL, (per_s, 720)) for per_s in (0, 0.01))
    yield AlertingRule(
        "ConchModelStuck",
        "critical",
        f"{_BY_MODEL} (conch_queue_depth) > 0 unless {_BY_MODEL} (rate(nv_inference_exec_count[5m])) > 0",
        300,
        f"Requests of {_MODEL} wait, and it has executed none for five minutes.",
        "The instances hang or are dead; reload the model, and look for its processes in the log.",
        (
            Proof("stuck", (waiting, hanging), 660, 1),
            Proof("slow", (waiting, slow), 660, 0),
            Proof("idle", (gauge("conch_queue_depth", _OF_MODEL, (0, 720)), hanging), 660, 0),
        ),
    )
    collector = {**_SCRAPED, "vendor": "nvidia"}
    yield _is_zero(
        "ConchAcceleratorCollectorDown",
        ("conch_accelerator_collector_up", collector),
        120,
        "{{ $labels.instance }} has no samples of accelerators (vendor: {{ $labels.vendor }}).",
        "The log of the exporter has the error of the driver, or the driver or tool that it did not find.",
    )
    yield _is_zero(
        "ConchAcceleratorLost",
        ("conch_accelerator_device_up", {**collector, "device": "nvidia0", "uuid": "GPU-1", "name": "H100"}),
        60,
        "{{ $labels.name }} {{ $labels.device }} on {{ $labels.instance }} no longer answers.",
        "Move its models; the kernel log has the last XID. A lost GPU needs a restart of the node.",
    )
    yield _is_zero(
        "ConchTunnelDown",
        ("conch_tunnel_up", {**_SCRAPED, "target": "gpu1"}),
        120,
        "The tunnel to {{ $labels.target }} is down.",
        "conch_tunnel_failures_total has the reasons; a changed host key is refused until it is accepted.",
    )
    yield _is_zero(
        "ConchLimitSourceDown",
        ("conch_limit_source_up", {**_SCRAPED, "source": "kubernetes"}),
        120,
        "The source {{ $labels.source }} of limits is unreachable; the last limits stay in force.",
        "Check the file or the Kubernetes API server.",
    )
    metric, labels = "conch_alerts_queued", {**_SCRAPED, "target": "dingtalk"}
    yield AlertingRule(
        "ConchAlertsUndelivered",
        "warning",
        f"min_over_time({metric}[10m]) > 0",
        300,
        "Alerts for {{ $labels.target }} have waited for more than ten minutes.",
        "conch_alerts_failed_attempts_total counts the attempts; the log of the receiver has the answers.",
        (
            Proof("waiting", (gauge(metric, labels, (0, 60), (1, 1200)),), 1200, 1),
            Proof("delivered once in between", (gauge(metric, labels, (1, 540), (0, 15), (1, 540)),), 1080, 0),
        ),
    )


def _is_zero(name: str, of: tuple[str, dict[str, str]], for_s: float, summary: str, remedy: str) -> AlertingRule:
    """Return the alert for a state, a metric with the labels of its proofs, that is 0 for a time."""
    down, back = gauge(*of, (1, 60), (0, for_s + 60)), gauge(*of, (0, for_s - 15), (1, 120))
    proofs = Proof("down", (down,), for_s + 90, 1), Proof("back in time", (back,), for_s + 60, 0)
    return AlertingRule(name, "warning", f"{of[0]} == 0", for_s, summary, remedy, proofs)


def _has_grown(
    name: str,
    severity: RuleSeverity,
    of: tuple[str, dict[str, str]],
    summary: str,
    remedy: str,
    proofs: tuple[str, str, str, str],
) -> AlertingRule:
    """Return the alert for a counter that grew in five minutes; `proofs` describes its four proofs."""
    metric, labels = of
    series = (
        (gauge(metric, labels, (3, 600), (4, 60)), 630, 1),
        (gauge(metric, labels, (None, 600), (1, 60)), 630, 1),
        (gauge(metric, labels, (3, 60), (4, 600)), 600, 0),
        (gauge(metric, labels, (None, 600), (0, 60)), 630, 0),
    )
    return AlertingRule(
        name,
        severity,
        # A counter that appears with its first event has no increase: compare it with its own past.
        f"{metric} > {metric} offset 5m or ({metric} unless {metric} offset 5m) > 0",
        0,
        summary,
        remedy,
        tuple(
            Proof(what, (changes,), at_s, fires) for what, (changes, at_s, fires) in zip(proofs, series, strict=True)
        ),
    )


# Language models and accelerators


def _language_model_alerts(limits: Thresholds) -> Iterator[AlertingRule]:
    yield _above_threshold(
        "ConchKvCacheFull",
        ("vllm:kv_cache_usage_perc", _OF_ENGINE),
        limits.kv_cache,
        f"{{{{ $value | humanizePercentage }}}} of the KV cache of {_LANGUAGE_MODEL} is in use.",
        "Requests are preempted soon; add replicas, memory for the cache, or lower max_num_seqs.",
    )
    yield _above_threshold(
        "ConchRequestsWaitingForEngine",
        ("vllm:num_requests_waiting", _OF_ENGINE),
        limits.waiting_requests,
        f"{{{{ $value }}}} requests of {_LANGUAGE_MODEL} wait for the engine.",
        "Add replicas; the alert ConchKvCacheFull shows whether memory is missing.",
    )
    limit, metric = limits.ttft, "vllm:time_to_first_token_seconds_bucket"
    yield AlertingRule(
        "ConchTimeToFirstTokenHigh",
        "warning",
        f"histogram_quantile(0.95, sum by (model_name, version, le) (rate({metric}[5m]))) > {limit:g}",
        120,
        f"One of 20 requests of {_LANGUAGE_MODEL} waits longer than {{{{ $value | humanizeDuration }}}}"
        " for its first token.",
        "Prompts are long or the engine is full: see the alerts about waiting requests and the KV cache.",
        (
            Proof("slow", _buckets(metric, _OF_ENGINE, limit, 0.08, 50), 540, 1),
            Proof("one of 25 is slow", _buckets(metric, _OF_ENGINE, limit, 0.04, 50), 540, 0),
        ),
    )


def _accelerator_alerts(limits: Thresholds) -> Iterator[AlertingRule]:
    yield _above_threshold(
        "ConchAcceleratorHot",
        ("conch_accelerator_temperature_celsius", _OF_DEVICE),
        limits.gpu_temperature,
        f"{_GPU} has {{{{ $value }}}} °C.",
        "Check fans, air flow and power limit; the clocks drop when it throttles.",
    )
    share, window_s, metric = limits.gpu_idle, limits.gpu_idle_time, "conch_accelerator_utilization_ratio"
    window, long_s = duration(window_s), window_s * 1.5
    yield AlertingRule(
        "ConchAcceleratorIdle",
        "info",
        # Only after the accelerator has been observed for the whole time.
        f"avg_over_time({metric}[{window}]) < {share:g} and {metric} offset {window}",
        0,
        f"{_GPU} was used {{{{ $value | humanizePercentage }}}} of the last {window}.",
        "Use a smaller or shared accelerator, more models on this one, or fewer replicas.",
        (
            Proof("idle", (gauge(metric, _OF_DEVICE, (share * 0.95, long_s)),), window_s * 1.2, 1),
            Proof("busy enough", (gauge(metric, _OF_DEVICE, (share * 1.05, long_s)),), window_s * 1.2, 0),
            Proof("not for long enough", (gauge(metric, _OF_DEVICE, (0, long_s)),), window_s * 0.9, 0),
        ),
    )
    yield _has_grown(
        "ConchAcceleratorError",
        "critical",
        ("conch_accelerator_errors_total", {**_OF_DEVICE, "code": "79"}),
        f"{_GPU} reports error {{{{ $labels.code }}}}.",
        "Look the code up in the vendor's list; for NVIDIA, XID 79 is a GPU that has fallen off the bus.",
        ("another error", "first error", "long ago", "none"),
    )
    share, metric, total = limits.gpu_memory, "conch_accelerator_memory_used_bytes", 40e9
    of_total = gauge("conch_accelerator_memory_total_bytes", _OF_DEVICE, (total, 600))
    full, nearly = (gauge(metric, _OF_DEVICE, (total * used, 600)) for used in (min(share * 1.02, 1), share * 0.99))
    yield AlertingRule(
        "ConchAcceleratorMemoryFull",
        "warning",
        f"{metric} / conch_accelerator_memory_total_bytes > {share:g}",
        300,
        f"{{{{ $value | humanizePercentage }}}} of the memory of {_GPU} is in use.",
        "conch_accelerator_model_memory_bytes shows which model uses it.",
        (
            Proof("full", (full, of_total), 540, 1),
            Proof("just under the threshold", (nearly, of_total), 540, 0),
        ),
    )


def _above_threshold(
    name: str, of: tuple[str, dict[str, str]], limit: float, summary: str, remedy: str
) -> AlertingRule:
    """Return the alert for a gauge, with the labels of its proofs, above a threshold for five minutes."""
    high = limit * 1.05
    return AlertingRule(
        name,
        "warning",
        f"{of[0]} > {limit:g}",
        300,
        summary,
        remedy,
        (
            Proof("above", (gauge(*of, (high, 420)),), 360, 1),
            Proof("at the threshold", (gauge(*of, (limit, 420)),), 360, 0),
            Proof("not for long enough", (gauge(*of, (high, 270), (limit * 0.9, 15), (high, 120)),), 360, 0),
        ),
    )
