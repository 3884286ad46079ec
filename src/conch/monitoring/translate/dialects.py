"""Which metrics of one vocabulary correspond to which of another, with their units. A table: no PromQL here.

Each row of `SERIES` is one quantity under the names of several dialects. Names of OpenTelemetry are those of its
semantic conventions as its Prometheus exporters write them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias, get_args

from conch.metric_catalog.metric import Kind, Unit
from conch.monitoring.units import conversion

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
class Series:
    """A metric of a dialect. `only` are the label values by which the dialect tells it from others of that name."""

    name: str
    unit: Unit = ""
    only: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Correspondence:
    """One quantity under the names of dialects. A histogram stands for its `_bucket`, `_sum` and `_count`."""

    kind: Kind
    names: dict[Dialect, Series]

    def factor(self, source: Dialect, target: Dialect) -> Fraction:
        """Return by what a value of the source is multiplied to get the target's."""
        return conversion(self.names[source].unit, self.names[target].unit)


def _dcgm(
    kind: Kind,
    legacy: tuple[str, Unit],
    new: tuple[str, Unit],
    **others: tuple[str, Unit] | tuple[str, Unit, tuple[tuple[str, str], ...]],
) -> Correspondence:
    names: dict[Dialect, Series] = {
        "dcgm-legacy": Series(f"DCGM_FI_{legacy[0]}", legacy[1]),
        "dcgm-4.7": Series(f"DCGM_FI_{new[0]}", new[1]),
    }
    for dialect in DIALECTS:
        if dialect in others:
            names[dialect] = Series(*others[dialect])
    return Correspondence(kind, names)


_GPU = (("hw_type", "gpu"),)
_ACCELERATORS = (
    _dcgm(
        "gauge",
        ("DEV_SM_CLOCK", "megahertz"),
        ("DEV_SM_CLOCK_HERTZ", "hertz"),
        conch=("conch_accelerator_clock_hertz", "hertz"),
    ),
    _dcgm("gauge", ("DEV_MEM_CLOCK", "megahertz"), ("DEV_MEMORY_CLOCK_HERTZ", "hertz")),
    _dcgm("gauge", ("DEV_MEMORY_TEMP", "celsius"), ("DEV_MEMORY_TEMP_CELSIUS", "celsius")),
    _dcgm(
        "gauge",
        ("DEV_GPU_TEMP", "celsius"),
        ("DEV_GPU_TEMP_CELSIUS", "celsius"),
        conch=("conch_accelerator_temperature_celsius", "celsius"),
        otel=("hw_temperature_celsius", "celsius", _GPU),
    ),
    _dcgm(
        "gauge",
        ("DEV_POWER_USAGE", "watts"),
        ("DEV_BOARD_POWER_WATTS", "watts"),
        conch=("conch_accelerator_power_watts", "watts"),
        otel=("hw_power_watts", "watts", _GPU),
        triton=("nv_gpu_power_usage", "watts"),
    ),
    _dcgm(
        "counter",
        ("DEV_TOTAL_ENERGY_CONSUMPTION", "millijoules"),
        ("DEV_GPU_ENERGY_JOULES_TOTAL", "joules"),
        conch=("conch_accelerator_energy_joules_total", "joules"),
        otel=("hw_energy_joules_total", "joules", _GPU),
        triton=("nv_energy_consumption", "joules"),
    ),
    _dcgm("counter", ("DEV_PCIE_REPLAY_COUNTER", ""), ("DEV_PCIE_REPLAY_TOTAL", "")),
    _dcgm(
        "gauge",
        ("DEV_GPU_UTIL", "percent"),
        ("DEV_GPU_UTIL_RATIO", "ratio"),
        conch=("conch_accelerator_utilization_ratio", "ratio"),
        otel=("hw_gpu_utilization_ratio", "ratio"),
        triton=("nv_gpu_utilization", "ratio"),
    ),
    _dcgm("gauge", ("DEV_MEM_COPY_UTIL", "percent"), ("DEV_MEMORY_UTIL_RATIO", "ratio")),
    _dcgm("gauge", ("DEV_ENC_UTIL", "percent"), ("DEV_ENC_UTIL_RATIO", "ratio")),
    _dcgm("gauge", ("DEV_DEC_UTIL", "percent"), ("DEV_DEC_UTIL_RATIO", "ratio")),
    _dcgm("gauge", ("DEV_XID_ERRORS", ""), ("DEV_XID_ERROR", "")),
    _dcgm("gauge", ("DEV_FB_FREE", "mebibytes"), ("DEV_FB_FREE_BYTES", "bytes")),
    _dcgm(
        "gauge",
        ("DEV_FB_USED", "mebibytes"),
        ("DEV_FB_USED_BYTES", "bytes"),
        conch=("conch_accelerator_memory_used_bytes", "bytes"),
        otel=("hw_gpu_memory_usage_bytes", "bytes"),
        triton=("nv_gpu_memory_used_bytes", "bytes"),
    ),
    _dcgm(
        "gauge",
        ("DEV_FB_TOTAL", "mebibytes"),
        ("DEV_FB_CAPACITY_BYTES", "bytes"),
        conch=("conch_accelerator_memory_total_bytes", "bytes"),
        otel=("hw_gpu_memory_limit_bytes", "bytes"),
        triton=("nv_gpu_memory_total_bytes", "bytes"),
    ),
    _dcgm("gauge", ("DEV_FB_RESERVED", "mebibytes"), ("DEV_FB_RESERVED_BYTES", "bytes")),
    _dcgm("gauge", ("DEV_VGPU_LICENSE_STATUS", ""), ("DEV_VGPU_LICENSE_STATUS", "")),
    _dcgm("counter", ("DEV_UNCORRECTABLE_REMAPPED_ROWS", ""), ("DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", "")),
    _dcgm("counter", ("DEV_CORRECTABLE_REMAPPED_ROWS", ""), ("DEV_ROW_REMAP_CORRECTABLE_TOTAL", "")),
    _dcgm("gauge", ("DEV_ROW_REMAP_FAILURE", ""), ("DEV_ROW_REMAP_FAILED", "")),
    _dcgm("gauge", ("PROF_GR_ENGINE_ACTIVE", "ratio"), ("PROF_GR_ENGINE_UTIL_RATIO", "ratio")),
    _dcgm("gauge", ("PROF_PIPE_TENSOR_ACTIVE", "ratio"), ("PROF_TENSOR_UTIL_RATIO", "ratio")),
    _dcgm("gauge", ("PROF_DRAM_ACTIVE", "ratio"), ("PROF_DRAM_UTIL_RATIO", "ratio")),
    _dcgm("gauge", ("PROF_PCIE_TX_BYTES", "bytes_per_second"), ("PROF_PCIE_TX_BYTES", "bytes_per_second")),
    _dcgm("gauge", ("PROF_PCIE_RX_BYTES", "bytes_per_second"), ("PROF_PCIE_RX_BYTES", "bytes_per_second")),
)


def _vllm(kind: Kind, v1: str, unit: Unit = "", *, v0: str | None = "", **others: Series) -> Correspondence:
    """Return a row of a metric of vLLM. `v0` is the name in the engine V0: by default the same, None if it had none."""
    names: dict[Dialect, Series] = {"vllm-v1": Series(f"vllm:{v1}", unit)}
    if v0 is not None:
        names["vllm-v0"] = Series(f"vllm:{v0 or v1}", unit)
    for dialect in DIALECTS:
        if dialect in others:
            names[dialect] = others[dialect]
    return Correspondence(kind, names)


def _gen_ai(name: str, unit: Unit = "seconds") -> Series:
    return Series(f"gen_ai_server_{name}", unit)


def _token_usage(token_type: str, suffix: str = "") -> Series:
    unit: Unit = "" if suffix == "_count" else "tokens"
    return Series(f"gen_ai_client_token_usage{suffix}", unit, (("gen_ai_token_type", token_type),))


_LANGUAGE_MODELS = (
    _vllm("gauge", "num_requests_running"),
    _vllm("gauge", "num_requests_waiting", triton=Series("nv_inference_pending_request_count")),
    _vllm("gauge", "kv_cache_usage_perc", "ratio", v0="gpu_cache_usage_perc"),
    _vllm("counter", "prefix_cache_queries_total", "tokens", v0="gpu_prefix_cache_queries_total"),
    _vllm("counter", "prefix_cache_hits_total", "tokens", v0="gpu_prefix_cache_hits_total"),
    _vllm("counter", "num_preemptions_total"),
    _vllm("gauge", "cache_config_info"),
    _vllm("counter", "prompt_tokens_total", "tokens", otel=_token_usage("input", "_sum")),
    _vllm("counter", "generation_tokens_total", "tokens", otel=_token_usage("output", "_sum")),
    _vllm("counter", "prompt_tokens_cached_total", "tokens", v0=None),
    _vllm("counter", "request_success_total"),
    _vllm("gauge", "engine_sleep_state", v0=None),
    _vllm(
        "histogram",
        "time_to_first_token_seconds",
        "seconds",
        otel=_gen_ai("time_to_first_token_seconds"),
        triton=Series("nv_inference_first_response_histogram_ms", "milliseconds"),
    ),
    _vllm("histogram", "inter_token_latency_seconds", "seconds", v0="time_per_output_token_seconds"),
    _vllm(
        "histogram",
        "request_time_per_output_token_seconds",
        "seconds",
        v0=None,
        otel=_gen_ai("time_per_output_token_seconds"),
    ),
    _vllm(
        "histogram",
        "e2e_request_latency_seconds",
        "seconds",
        otel=_gen_ai("request_duration_seconds"),
        conch=Series("conch_request_duration_seconds", "seconds"),
    ),
    _vllm(
        "counter",
        "e2e_request_latency_seconds_sum",
        "seconds",
        otel=_gen_ai("request_duration_seconds_sum"),
        conch=Series("conch_request_duration_seconds_sum", "seconds"),
        triton=Series("nv_inference_request_duration_us", "microseconds"),
    ),
    _vllm(
        "counter",
        "e2e_request_latency_seconds_count",
        otel=_gen_ai("request_duration_seconds_count", ""),
        conch=Series("conch_request_duration_seconds_count"),
        triton=Series("nv_inference_request_success"),
    ),
    _vllm(
        "histogram",
        "request_queue_time_seconds",
        "seconds",
        conch=Series("conch_queue_duration_seconds", "seconds"),
    ),
    _vllm(
        "counter",
        "request_queue_time_seconds_sum",
        "seconds",
        conch=Series("conch_queue_duration_seconds_sum", "seconds"),
        triton=Series("nv_inference_queue_duration_us", "microseconds"),
    ),
    _vllm("histogram", "request_prefill_time_seconds", "seconds"),
    _vllm("histogram", "request_decode_time_seconds", "seconds"),
    _vllm("histogram", "request_inference_time_seconds", "seconds"),
    _vllm("histogram", "request_prompt_tokens", "tokens", otel=_token_usage("input")),
    _vllm("histogram", "request_generation_tokens", "tokens", otel=_token_usage("output")),
    _vllm("histogram", "request_params_n"),
    _vllm("histogram", "request_params_max_tokens", "tokens"),
    _vllm("histogram", "request_max_num_generation_tokens", "tokens"),
    _vllm("histogram", "iteration_tokens_total", "tokens"),
    _vllm("gauge", "lora_requests_info"),
    Correspondence(
        "gauge",
        {"conch": Series("conch_queue_depth"), "triton": Series("nv_inference_pending_request_count")},
    ),
)

SERIES: tuple[Correspondence, ...] = (*_ACCELERATORS, *_LANGUAGE_MODELS)

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
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "the counter became the gauge DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND",
    "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND": "it was the counter DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL before",
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
    return [found for each in SERIES for found in _of_row(each, name, source, target)]


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


def label_name(label: str, source: Dialect, target: Dialect) -> str:
    """Return a label's name in the target. Raises Untranslatable if the target has no such label."""
    for row in LABELS:
        if row.get(source) == label:
            if target not in row:
                raise Untranslatable(label, f"the label has no counterpart in {target}")
            return row[target]
    return label
