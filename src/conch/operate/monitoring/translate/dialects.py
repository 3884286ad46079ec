"""Which metrics of one vocabulary correspond to which of another, with their units. A table: no PromQL here.

Each row of `SERIES` is one quantity under the names of several dialects, from the metric catalogue where it has them.
Names of OpenTelemetry are those of its semantic conventions as its Prometheus exporters write them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias, get_args

from conch.domain.metrics import accelerators, dcgm, gpu, server, triton, vllm
from conch.domain.metrics.dcgm import DCGM_FIELDS, DcgmField
from conch.domain.metrics.metric import Kind, MetricDefinition, Unit
from conch.operate.monitoring.units import conversion

Dialect: TypeAlias = Literal["conch", "dcgm-4.7", "dcgm-legacy", "otel", "triton", "vllm-v0", "vllm-v1"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
# What names of a dialect begin with. A name with such a prefix that no row has is reported.
PREFIXES: dict[Dialect, tuple[str, ...]] = {
    "conch": ("conch_",),
    "dcgm-4.7": ("DCGM_FI_", "DCGM_EXP_"),
    "dcgm-legacy": ("DCGM_FI_", "DCGM_EXP_"),
    "otel": ("gen_ai_", "hw_"),
    "triton": ("nv_",),
    "vllm-v0": ("vllm:",),
    "vllm-v1": ("vllm:",),
}


@dataclass(frozen=True, slots=True)
class DialectSeries:
    """A metric of a dialect. `only` are the label values by which the dialect tells it from others of that name."""

    name: str
    unit: Unit = ""
    only: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Correspondence:
    """One quantity under the names of dialects. A histogram stands for its `_bucket`, `_sum` and `_count`."""

    kind: Kind
    names: dict[Dialect, DialectSeries]

    def factor(self, source: Dialect, target: Dialect) -> Fraction:
        """Return by what a value of the source is multiplied to get the target's."""
        return conversion(self.names[source].unit, self.names[target].unit)


def _named(metric: MetricDefinition) -> DialectSeries:
    return DialectSeries(metric.name, metric.unit)


_HARDWARE = (("hw_type", "gpu"),)
# What has a name beyond DCGM.
_OTHER_NAMES: dict[DcgmField, dict[Dialect, DialectSeries]] = {
    dcgm.SM_CLOCK: {"conch": _named(accelerators.CLOCK)},
    dcgm.GPU_TEMPERATURE: {
        "conch": _named(accelerators.TEMPERATURE),
        "otel": DialectSeries("hw_temperature_celsius", "celsius", _HARDWARE),
    },
    dcgm.POWER: {
        "conch": _named(accelerators.POWER),
        "otel": DialectSeries("hw_power_watts", "watts", _HARDWARE),
        "triton": _named(gpu.GPU_POWER_USAGE),
    },
    dcgm.POWER_LIMIT: {"triton": _named(gpu.GPU_POWER_LIMIT)},
    dcgm.ENERGY: {
        "conch": _named(accelerators.ENERGY),
        "otel": DialectSeries("hw_energy_joules_total", "joules", _HARDWARE),
        "triton": _named(gpu.GPU_ENERGY),
    },
    dcgm.GPU_UTILIZATION: {
        "conch": _named(accelerators.UTILIZATION),
        "otel": DialectSeries("hw_gpu_utilization_ratio", "ratio"),
        "triton": _named(gpu.GPU_UTILIZATION),
    },
    dcgm.MEMORY_USED: {
        "conch": _named(accelerators.MEMORY_USED),
        "otel": DialectSeries("hw_gpu_memory_usage_bytes", "bytes"),
        "triton": _named(gpu.GPU_MEMORY_USED),
    },
    dcgm.MEMORY_TOTAL: {
        "conch": _named(accelerators.MEMORY_TOTAL),
        "otel": DialectSeries("hw_gpu_memory_limit_bytes", "bytes"),
        "triton": _named(gpu.GPU_MEMORY_TOTAL),
    },
}
_ACCELERATORS = tuple(
    Correspondence(
        field.legacy.kind,
        {"dcgm-legacy": _named(field.legacy), "dcgm-4.7": _named(field.current), **_OTHER_NAMES.get(field, {})},
    )
    for field in DCGM_FIELDS
)


def _vllm(metric: MetricDefinition, *, v0: str | None = "", **others: DialectSeries) -> Correspondence:
    """Return a row of a metric of vLLM. `v0` is the name in the engine V0: by default the same, None if it had none."""
    names: dict[Dialect, DialectSeries] = {"vllm-v1": _named(metric)}
    if v0 is not None:
        names["vllm-v0"] = DialectSeries(f"vllm:{v0}" if v0 else metric.name, metric.unit)
    for dialect in DIALECTS:
        if dialect in others:
            names[dialect] = others[dialect]
    return Correspondence(metric.kind, names)


def _part(histogram: MetricDefinition, suffix: Literal["_sum", "_count"], **others: DialectSeries) -> Correspondence:
    """Return a row of the sum or the count of a histogram of vLLM, which elsewhere is a counter."""
    unit: Unit = histogram.unit if suffix == "_sum" else ""
    name = f"{histogram.name}{suffix}"
    names: dict[Dialect, DialectSeries] = {"vllm-v0": DialectSeries(name, unit), "vllm-v1": DialectSeries(name, unit)}
    for dialect in DIALECTS:
        if dialect in others:
            names[dialect] = others[dialect]
    return Correspondence("counter", names)


def _gen_ai(name: str, unit: Unit = "seconds") -> DialectSeries:
    return DialectSeries(f"gen_ai_server_{name}", unit)


def _token_usage(token_type: str, suffix: str = "") -> DialectSeries:
    return DialectSeries(f"gen_ai_client_token_usage{suffix}", "tokens", (("gen_ai_token_type", token_type),))


_ONLY_VLLM: tuple[tuple[Kind, str], ...] = (
    ("histogram", "iteration_tokens_total"),
    ("gauge", "lora_requests_info"),
)
_LANGUAGE_MODELS = (
    _vllm(vllm.REQUESTS_RUNNING),
    _vllm(vllm.REQUESTS_WAITING, triton=_named(triton.PENDING_REQUESTS)),
    _vllm(vllm.KV_CACHE_USAGE, v0="gpu_cache_usage_perc"),
    _vllm(vllm.PREFIX_CACHE_QUERIES, v0="gpu_prefix_cache_queries_total"),
    _vllm(vllm.PREFIX_CACHE_HITS, v0="gpu_prefix_cache_hits_total"),
    _vllm(vllm.PREEMPTIONS),
    _vllm(vllm.CACHE_CONFIG),
    _vllm(vllm.PROMPT_TOKENS, otel=_token_usage("input", "_sum")),
    _vllm(vllm.GENERATION_TOKENS, otel=_token_usage("output", "_sum")),
    _vllm(vllm.PROMPT_TOKENS_CACHED, v0=None),
    _vllm(vllm.REQUEST_SUCCESS),
    _vllm(vllm.SLEEP_STATE, v0=None),
    _vllm(
        vllm.TIME_TO_FIRST_TOKEN,
        otel=_gen_ai("time_to_first_token_seconds"),
        triton=_named(triton.FIRST_RESPONSE),
    ),
    _vllm(vllm.INTER_TOKEN_LATENCY, v0="time_per_output_token_seconds"),
    _vllm(vllm.TIME_PER_OUTPUT_TOKEN, v0=None, otel=_gen_ai("time_per_output_token_seconds")),
    _vllm(vllm.REQUEST_LATENCY, otel=_gen_ai("request_duration_seconds"), conch=_named(server.REQUEST_DURATION)),
    _part(vllm.REQUEST_LATENCY, "_sum", triton=_named(triton.REQUEST_DURATION)),
    _part(vllm.REQUEST_LATENCY, "_count", triton=_named(triton.REQUEST_SUCCESS)),
    _vllm(vllm.QUEUE_TIME, conch=_named(server.QUEUE_DURATION)),
    _part(vllm.QUEUE_TIME, "_sum", triton=_named(triton.QUEUE_DURATION)),
    _vllm(vllm.PREFILL_TIME),
    _vllm(vllm.DECODE_TIME),
    _vllm(vllm.INFERENCE_TIME),
    _vllm(vllm.PROMPT_LENGTH, otel=_token_usage("input")),
    _vllm(vllm.GENERATION_LENGTH, otel=_token_usage("output")),
    _vllm(vllm.LONGEST_GENERATION),
    _vllm(vllm.REQUESTED_N),
    _vllm(vllm.REQUESTED_MAX_TOKENS),
    # Metrics of vLLM that Conch does not have.
    *(
        Correspondence(kind, {"vllm-v0": DialectSeries(f"vllm:{name}"), "vllm-v1": DialectSeries(f"vllm:{name}")})
        for kind, name in _ONLY_VLLM
    ),
)

# Other pairs of a histogram and counters, and of gauges.
_TRITON = (
    Correspondence(
        "counter",
        {
            "triton": _named(triton.REQUEST_DURATION),
            "conch": DialectSeries(f"{server.REQUEST_DURATION.name}_sum", "seconds"),
            "otel": _gen_ai("request_duration_seconds_sum"),
        },
    ),
    Correspondence(
        "counter",
        {
            "triton": _named(triton.REQUEST_SUCCESS),
            "conch": DialectSeries(f"{server.REQUEST_DURATION.name}_count"),
            "otel": _gen_ai("request_duration_seconds_count", ""),
        },
    ),
    Correspondence(
        "counter",
        {
            "triton": _named(triton.QUEUE_DURATION),
            "conch": DialectSeries(f"{server.QUEUE_DURATION.name}_sum", "seconds"),
        },
    ),
    Correspondence("gauge", {"triton": _named(triton.PENDING_REQUESTS), "conch": _named(server.QUEUE_DEPTH)}),
)

SERIES: tuple[Correspondence, ...] = (*_ACCELERATORS, *_LANGUAGE_MODELS, *_TRITON)

# The same label under the names of dialects. A label of the source that the target has no name for is reported.
LABELS: tuple[dict[Dialect, str], ...] = (
    {"dcgm-legacy": "Hostname", "dcgm-4.7": "hostname"},
    {"dcgm-legacy": "DCGM_FI_DRIVER_VERSION", "dcgm-4.7": "DCGM_FI_SYSTEM_DRIVER_VERSION"},
    {"dcgm-legacy": "UUID", "dcgm-4.7": "UUID", "conch": "uuid", "otel": "hw_id", "triton": "gpu_uuid"},
    {"dcgm-legacy": "modelName", "dcgm-4.7": "modelName", "conch": "name", "otel": "hw_name"},
    {"dcgm-legacy": "gpu", "dcgm-4.7": "gpu"},
    {"dcgm-legacy": "pci_bus_id", "dcgm-4.7": "pci_bus_id"},
    {"dcgm-legacy": "GPU_I_ID", "dcgm-4.7": "GPU_I_ID"},
    {"dcgm-legacy": "GPU_I_PROFILE", "dcgm-4.7": "GPU_I_PROFILE"},
    {
        "conch": "model",
        "otel": "gen_ai_request_model",
        "triton": "model",
        "vllm-v0": "model_name",
        "vllm-v1": "model_name",
    },
    {"vllm-v1": "engine"},
    {"vllm-v0": "finished_reason", "vllm-v1": "finished_reason"},
)

# Metrics that deserve a reason: what to use in place of them.
_NO_COUNTERPART: dict[str, str] = {
    "vllm:gpu_prefix_cache_hit_rate": "divide the rate of vllm:prefix_cache_hits_total by that of …_queries_total",
    "vllm:cpu_prefix_cache_hit_rate": "V1 has no cache in the memory of the host",
    "vllm:cpu_cache_usage_perc": "V1 does not swap to the memory of the host",
    "vllm:num_requests_swapped": "V1 preempts requests by recomputing them: vllm:num_preemptions_total",
    "vllm:request_params_best_of": "V1 has no parameter best_of",
    "vllm:avg_prompt_throughput_toks_per_s": "use rate(vllm:prompt_tokens_total[5m])",
    "vllm:avg_generation_throughput_toks_per_s": "use rate(vllm:generation_tokens_total[5m])",
    "vllm:time_in_queue_requests": "use vllm:request_queue_time_seconds",
    "gen_ai_client_operation_duration_seconds": "clients measure it; a server knows gen_ai_server_request_duration",
}
_SUFFIXES = ("_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The series that another corresponds to. New values are `factor` times the old ones.

    `bound_factor` is that of the `le` label of buckets. `required` are label values that the source's selector has for
    this meaning, and which the new one does not have; `added` those that the new one must have.
    """

    name: str
    factor: Fraction = Fraction(1)
    bound_factor: Fraction = Fraction(1)
    required: tuple[tuple[str, str], ...] = ()
    added: tuple[tuple[str, str], ...] = ()


class Untranslatable(Exception):
    """A query has no counterpart. `subject` is the metric or label, and the text the reason."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(reason)
        self.subject = subject


def counterparts(name: str, source: Dialect, target: Dialect) -> list[Counterpart]:
    """Return the counterparts of a series, by its whole name. Several differ in the labels that they require."""
    return [counterpart for row in SERIES for counterpart in _of_row(row, name, source, target)]


def _of_row(row: Correspondence, name: str, source: Dialect, target: Dialect) -> Iterator[Counterpart]:
    old, new = row.names.get(source), row.names.get(target)
    if old is None or new is None or not name.startswith(old.name):
        return
    suffix = name[len(old.name) :]
    factor = row.factor(source, target)
    if row.kind == "histogram" and suffix in _SUFFIXES:
        value = factor if suffix == "_sum" else Fraction(1)
        bound = factor if suffix == "_bucket" else Fraction(1)
        yield Counterpart(new.name + suffix, value, bound, old.only, new.only)
    elif row.kind != "histogram" and not suffix:
        yield Counterpart(new.name, factor, Fraction(1), old.only, new.only)


def belongs(name: str, dialect: Dialect) -> bool:
    """Return whether a name is one of a dialect, known or not."""
    return name.startswith(PREFIXES[dialect])


def reason(name: str, source: Dialect, target: Dialect) -> str:
    """Return why a series has no counterpart."""
    base = next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)
    if source.partition("-")[0] == target.partition("-")[0] and (hint := _NO_COUNTERPART.get(base)):
        return f"no counterpart in {target}: {hint}"
    return f"no counterpart in {target}"


def model_label(source: Dialect, target: Dialect) -> str:
    """Return the target's label that names the model, if its metrics are of all models and the source's are not."""
    if not source.startswith("vllm") or target not in ("conch", "triton"):
        return ""
    return next(row[target] for row in LABELS if row.get(source) == "model_name")


def label_name(label: str, source: Dialect, target: Dialect) -> str:
    """Return a label's name in the target. Raises Untranslatable if the target has no such label."""
    for row in LABELS:
        if row.get(source) == label:
            if target not in row:
                raise Untranslatable(label, f"the label has no counterpart in {target}")
            return row[target]
    return label
