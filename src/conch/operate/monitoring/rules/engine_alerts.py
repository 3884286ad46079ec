"""Alerts about language models and accelerators."""

from conch.operate.monitoring.promql import duration
from conch.operate.monitoring.rules.rule import AlertingRule, InputSeries, Proof, RuleGroup, counter, gauge
from conch.operate.monitoring.rules.thresholds import Thresholds

_ENGINE = {"model_name": "m", "engine": "0", "version": "1", "job": "conch", "instance": "a:8002"}
_DEVICE = {
    "vendor": "nvidia",
    "device": "nvidia0",
    "uuid": "GPU-6fe85c78",
    "name": "NVIDIA A800",
    "job": "gpu-exporter",
    "instance": "a:9400",
}
_MODEL = "model {{ $labels.model_name }} version {{ $labels.version }}"
_GPU = "{{ $labels.name }} {{ $labels.device }} on {{ $labels.instance }}"


def language_model_alerts(limits: Thresholds) -> RuleGroup:
    """Return the alerts about language models."""
    return RuleGroup(
        "conch-language-models",
        (
            _above(
                "ConchKvCacheFull",
                ("vllm:kv_cache_usage_perc", _ENGINE),
                limits.kv_cache,
                300,
                f"{{{{ $value | humanizePercentage }}}} of the KV cache of {_MODEL} is in use.",
                "Requests are preempted soon; add replicas, memory for the cache, or lower max_num_seqs.",
            ),
            _above(
                "ConchRequestsWaitingForEngine",
                ("vllm:num_requests_waiting", _ENGINE),
                limits.waiting_requests,
                300,
                f"{{{{ $value }}}} requests of {_MODEL} wait for the engine.",
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
            _above(
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


def _above(
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
        f"One of 20 requests of {_MODEL} waits longer than {{{{ $value | humanizeDuration }}}} for its first token.",
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
