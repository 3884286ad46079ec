"""The families of `/metrics`, computed from the statistics for each scrape.

The request path only adds integers (see `statistics`). Names, kinds and help are those of `conch.domain.metrics`. The
families of language models are vLLM's, for every engine, with vLLM's labels `model_name` and `engine`, and `version`,
because a repository can have several.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from itertools import accumulate, chain
from math import inf
from time import monotonic_ns, time
from typing import Protocol, TypeAlias

from conch.base.errors import ConfigError
from conch.base.extras import install_command
from conch.domain.exposition import Buckets, Exemplar, Family, Labels, Point, Quantiles, pieces, render
from conch.domain.metrics.catalog import all_metrics
from conch.domain.openmetrics import openmetrics_pieces
from conch.domain.statistics.generation_statistics import Distribution, GenerationStatistics
from conch.domain.statistics.model_statistics import CacheStatistics, Duration, Histogram, ModelState, ModelStatistics
from conch.domain.statistics.summaries import LatencySummaries, Summary
from conch.server.observability.metrics.custom import CustomMetrics, MetricSample, label_name
from conch.server.observability.metrics.loop_lag import LoopLag, lag_families
from conch.server.observability.metrics.proc_meters import HostMeter, HostUsage, ProcessMeter, server_families
from conch.server.observability.metrics.reading import LabelledReading, Reading, read, read_one
from conch.server.options.server_options import ServerOptions

_log = logging.getLogger(__name__)

# What other parts of the server expose: called on the loop for each scrape, must not block.
Collector: TypeAlias = Callable[[], Iterable[Family]]


@dataclass(frozen=True, slots=True)
class RequestMemory:
    """Statistics of the memory for request bodies, with the requests refused and uploads evicted at its limit."""

    limit_bytes: int
    used_bytes: int
    refused: int
    evicted: int


_SECOND_NS = 1_000_000_000


def _us(duration: Duration) -> int:
    return duration.ns // 1000


def _buckets(histogram: Histogram | None, unit_ns: int) -> Buckets | None:
    if histogram is None:
        return None
    counts = list(accumulate(histogram.counts))
    exemplars = {
        bucket: Exemplar(trace_id, ns / unit_ns, time / _SECOND_NS)
        for bucket, (trace_id, ns, time) in histogram.examples.items()
    }
    return Buckets(_bounds(histogram.bounds_ns, unit_ns), counts, histogram.ns / unit_ns, exemplars)


def _first_responses(histogram: Histogram | None) -> Buckets | None:
    """Return times whose sum is in whole milliseconds, as Triton's, whose readers parse an integer."""
    buckets = _buckets(histogram, 1_000_000)
    return buckets and buckets._replace(total=int(buckets.total))


@cache
def _bounds(bounds_ns: tuple[int, ...], unit_ns: int) -> tuple[float, ...]:
    return (*(bound / unit_ns for bound in bounds_ns), inf)


COUNTS: tuple[Reading[ModelStatistics] | LabelledReading[ModelStatistics], ...] = (
    Reading("nv_inference_request_success", lambda s: s.success.count),
    # Series with the value 0 are included, so that the first failure is an increase.
    LabelledReading(
        "nv_inference_request_failure",
        "reason",
        lambda s: [(reason.value, count) for reason, count in s.failures.items()],
    ),
    # Only of models that have missed a deadline: few clients send any.
    LabelledReading(
        "conch_deadline_misses_total",
        "stage",
        lambda s: list(s.deadline_misses.items()) if any(s.deadline_misses.values()) else [],
    ),
    Reading("nv_inference_count", lambda s: s.inference_count),
    Reading("nv_inference_exec_count", lambda s: s.execution_count),
)
LATENCIES: tuple[Reading[ModelStatistics], ...] = (
    Reading("nv_inference_request_duration_us", lambda s: _us(s.success)),
    Reading("nv_inference_queue_duration_us", lambda s: _us(s.queue)),
    Reading("nv_inference_compute_input_duration_us", lambda s: _us(s.compute_input)),
    Reading("nv_inference_compute_infer_duration_us", lambda s: _us(s.compute_infer)),
    Reading("nv_inference_compute_output_duration_us", lambda s: _us(s.compute_output)),
)
FIRST_RESPONSES: tuple[Reading[ModelStatistics], ...] = (
    Reading("nv_inference_first_response_histogram_ms", lambda s: _first_responses(s.first_response)),
)
STATES: tuple[Reading[ModelStatistics], ...] = (
    Reading("nv_inference_pending_request_count", lambda s: s.pending),
    Reading("nv_model_load_duration_secs", lambda s: s.load_duration_s),
)
CACHES: tuple[Reading[ModelStatistics], ...] = (
    Reading("nv_cache_num_hits_per_model", lambda s: s.cache_hit.count if s.cached else None),
    Reading("nv_cache_hit_duration_per_model", lambda s: _us(s.cache_hit) if s.cached else None),
    Reading("nv_cache_num_misses_per_model", lambda s: s.cache_miss.count if s.cached else None),
    Reading("nv_cache_miss_duration_per_model", lambda s: _us(s.cache_miss) if s.cached else None),
)


def _batch_sizes(model: ModelStatistics) -> Buckets:
    bounds = model.batch_size_bounds
    counts = [0] * (len(bounds) + 1)
    for size, batch in model.batches.items():
        counts[bisect_left(bounds, size)] += batch.compute_infer.count
    total = sum(size * batch.compute_infer.count for size, batch in model.batches.items())
    return Buckets((*bounds, inf), list(accumulate(counts)), total)


HISTOGRAMS: tuple[Reading[ModelStatistics], ...] = (
    Reading("conch_request_duration_seconds", lambda s: _buckets(s.request_duration, _SECOND_NS)),
    Reading("conch_queue_duration_seconds", lambda s: _buckets(s.queue_duration, _SECOND_NS)),
    Reading("conch_batch_size", _batch_sizes),
)
LIVE: tuple[Reading[ModelState], ...] = (
    Reading("conch_model_ready", lambda s: int(s.ready)),
    Reading("conch_instances", lambda s: s.instances or None),
    Reading("conch_instance_busy_seconds_total", lambda s: s.busy_ns / _SECOND_NS if s.instances else None),
    Reading("conch_queue_depth", lambda s: s.queued if s.instances else None),
    Reading(
        "conch_queue_oldest_request_seconds",
        lambda s: ((monotonic_ns() - s.oldest_ns) / _SECOND_NS if s.oldest_ns else 0) if s.instances else None,
    ),
    Reading("conch_process_restarts_total", lambda s: s.restarts if s.instances else None),
)
SUMMARIES: tuple[tuple[str, Callable[[LatencySummaries], Summary]], ...] = (
    ("nv_inference_request_summary_us", lambda s: s.success),
    ("nv_inference_queue_summary_us", lambda s: s.queue),
    ("nv_inference_compute_input_summary_us", lambda s: s.compute_input),
    ("nv_inference_compute_infer_summary_us", lambda s: s.compute_infer),
    ("nv_inference_compute_output_summary_us", lambda s: s.compute_output),
    ("nv_cache_hit_summary_per_model", lambda s: s.cache_hit),
    ("nv_cache_miss_summary_per_model", lambda s: s.cache_miss),
)
_OF_CACHED_MODELS = ("nv_cache_hit_summary_per_model", "nv_cache_miss_summary_per_model")
SERVER_CACHE: tuple[Reading[CacheStatistics], ...] = (
    Reading("nv_cache_util", lambda c: c.used / c.size if c.size else 0.0),
    Reading("nv_cache_num_entries", lambda c: c.entries),
    Reading("nv_cache_num_hits", lambda c: c.hits),
    Reading("nv_cache_num_misses", lambda c: c.misses),
    Reading("nv_cache_num_lookups", lambda c: c.hits + c.misses),
    Reading("nv_cache_num_evictions", lambda c: c.evictions),
    Reading("nv_cache_lookup_duration", lambda c: c.lookup_ns // 1000),
    Reading("nv_cache_insertion_duration", lambda c: c.insertion_ns // 1000),
)
HOST: tuple[Reading[HostUsage], ...] = (
    Reading("nv_cpu_utilization", lambda u: u.cpu_utilization),
    Reading("nv_cpu_memory_total_bytes", lambda u: u.memory_total_bytes),
    Reading("nv_cpu_memory_used_bytes", lambda u: u.memory_used_bytes),
)
REQUEST_MEMORY: tuple[Reading[RequestMemory], ...] = (
    Reading("conch_request_memory_limit_bytes", lambda m: m.limit_bytes),
    Reading("conch_request_memory_used_bytes", lambda m: m.used_bytes),
    Reading("conch_request_memory_refused_total", lambda m: m.refused),
    Reading("conch_request_memory_evicted_total", lambda m: m.evicted),
)


def _of_processes(meter: ProcessMeter) -> tuple[LabelledReading[ModelState], ...]:
    usage = meter.usage
    return (
        LabelledReading(
            "conch_process_cpu_seconds_total",
            "instance",
            lambda s: [(name, usage[pid].cpu_s) for name, pid in s.processes if pid in usage],
        ),
        LabelledReading(
            "conch_process_resident_memory_bytes",
            "instance",
            lambda s: [(name, usage[pid].resident_bytes) for name, pid in s.processes if pid in usage],
        ),
    )


class Metrics:
    """The metrics of one server.

    `statistics` returns those of all model versions, `samples` the custom metrics of models. `cache` has those of the
    response cache, `request_memory` returns those of the memory for request bodies, and `lag` has those of the event
    loop; `meter` samples processes. Each is None if there is none. `collectors` yield the families of other parts.
    """

    def __init__(
        self,
        *,
        statistics: Callable[[], Iterable[ModelStatistics]],
        samples: Callable[[], Iterable[MetricSample]],
        options: ServerOptions,
        cache: CacheStatistics | None = None,
        request_memory: Callable[[], RequestMemory] | None = None,
        lag: LoopLag | None = None,
        meter: ProcessMeter | None = None,
        collectors: Sequence[Collector] = (),
    ) -> None:
        self._statistics = statistics
        self._samples = samples
        self._options = options
        self._cache = cache
        self._request_memory = request_memory
        self._lag = lag
        self._host = HostMeter(options.metrics_interval_ms / 1000) if options.allow_cpu_metrics else None
        self._meter = meter
        self._custom = CustomMetrics(all_metrics())
        self._collectors = collectors

    @property
    def problem(self) -> str:
        """Why custom metrics of models are missing, "" if none are."""
        return self._custom.problem

    def render(self) -> bytes:
        """Return the text of a scrape."""
        return render(self.families())

    def pieces(self) -> Iterator[bytes]:
        """Return the text of a scrape in pieces."""
        for family in self.families():
            yield from pieces(family)

    def openmetrics_pieces(self) -> Iterator[bytes]:
        """Return the text of a scrape in OpenMetrics, in pieces."""
        return openmetrics_pieces(self.families())

    def families(self) -> Iterator[Family]:
        """Yield all families. Custom metrics with the names of the catalogue are omitted."""
        yield from self._of_models()
        yield from read_one(SERVER_CACHE, self._cache)
        yield from read_one(HOST, self._host.usage() if self._host else None)
        yield from read_one(REQUEST_MEMORY, self._request_memory() if self._request_memory else None)
        yield from () if self._meter is None else server_families(self._meter)
        yield from () if self._lag is None else lag_families(self._lag)
        for collector in self._collectors:
            yield from _collected(collector)
        yield from self._custom.families(self._samples())

    def _of_models(self) -> Iterator[Family]:
        models = [(_labels(model), model) for model in self._statistics()]
        chosen = self._options.metrics
        tables = chain(
            COUNTS,
            LATENCIES if chosen.counter_latencies else (),
            FIRST_RESPONSES if chosen.histogram_latencies else (),
            _summaries(chosen.summary_quantiles) if chosen.summary_latencies else (),
            STATES,
            CACHES if chosen.counter_latencies else (),
            HISTOGRAMS,
        )
        yield from read(list(tables), models)
        states = [(labels, model.state()) for labels, model in models if model.state is not None]
        yield from read(LIVE, states)
        if self._meter is not None:
            yield from read(_of_processes(self._meter), states)
        engines = [(labels, model.generation) for labels, model in models if model.generation is not None]
        yield Family.of("conch_engine_info", [Point(1, {**labels, **_engine(model)}) for labels, model in engines])
        yield from generation_families(model for _, model in engines)


class Exporter(Protocol):
    """Sends metrics elsewhere."""

    async def run(self) -> None:
        """Send until cancelled."""


def otlp_exporter(options: ServerOptions, metrics: Metrics) -> Exporter | None:
    """Return the exporter to the collector of the options, None without one.

    Raises ConfigError if the packages of OpenTelemetry are missing.
    """
    config = options.metrics
    if not config.otlp_endpoint:
        return None
    try:
        module = import_module("conch.server.observability.metrics.otlp")
    except ImportError as error:
        raise ConfigError(
            "--metrics-config=otlp_endpoint=<url> needs the packages of OpenTelemetry: "
            f"{install_command('opentelemetry')} ({error})"
        ) from error
    exporter: Exporter = module.MetricsExporter(config.otlp_endpoint, config.otlp_interval_ms / 1000, metrics.families)
    return exporter


def _collected(collector: Collector) -> list[Family]:
    """Return the families of a collector. One that fails costs its own families only."""
    try:
        return list(collector())
    except Exception:
        _log.exception("a metrics collector failed; its metrics are missing from this scrape")
        return []


def _summaries(quantiles: Sequence[float]) -> Iterator[Reading[ModelStatistics]]:
    for metric, summary in SUMMARIES:
        cached_only = metric in _OF_CACHED_MODELS
        yield Reading(metric, partial(_quantiles, summary=summary, cached_only=cached_only, quantiles=quantiles))


def _quantiles(
    model: ModelStatistics,
    *,
    summary: Callable[[LatencySummaries], Summary],
    cached_only: bool,
    quantiles: Sequence[float],
) -> Quantiles | None:
    if model.summaries is None or (cached_only and not model.cached):
        return None
    latencies = summary(model.summaries)
    values = list(zip(quantiles, latencies.quantiles_us(quantiles), strict=True))
    return Quantiles(values, latencies.ns // 1000, latencies.count)


def _labels(model: ModelStatistics) -> Labels:
    tags = {label_name(f"_{key}"): value for key, value in model.metric_tags.items()}
    namespace = {"namespace": model.namespace} if model.namespace else {}
    return Labels({**tags, "model": model.model_name, **namespace, "version": str(model.version)})


def _distribution(distribution: Distribution) -> Buckets:
    bounds, counts = zip(*distribution.cumulative(), strict=True)
    return Buckets(bounds, counts, distribution.total)


GENERATION_STATES: tuple[Reading[GenerationStatistics] | LabelledReading[GenerationStatistics], ...] = (
    Reading("vllm:num_requests_running", lambda s: s.load().running),
    Reading("vllm:num_requests_waiting", lambda s: s.load().waiting),
    Reading("vllm:kv_cache_usage_perc", lambda s: s.load().kv_cache_usage),
    Reading("vllm:prefix_cache_queries_total", lambda s: s.load().prefix_cache_queries),
    Reading("vllm:prefix_cache_hits_total", lambda s: s.load().prefix_cache_hits),
    Reading("vllm:num_preemptions_total", lambda s: s.load().preemptions),
    LabelledReading(
        "vllm:engine_sleep_state",
        "sleep_state",
        lambda s: [("awake", int(not s.load().stopped)), ("discard_all", int(s.load().stopped))],
    ),
)
GENERATION_REQUESTS: tuple[Reading[GenerationStatistics] | LabelledReading[GenerationStatistics], ...] = (
    Reading("vllm:prompt_tokens_total", lambda s: s.prompt_tokens),
    Reading("vllm:prompt_tokens_cached_total", lambda s: s.cached_tokens),
    Reading("vllm:generation_tokens_total", lambda s: s.generation_tokens),
    # Series with the value 0 are included, so that the first one is an increase.
    LabelledReading(
        "vllm:request_success_total",
        "finished_reason",
        lambda s: [(reason.value, count) for reason, count in s.finished.items()],
    ),
    Reading("vllm:time_to_first_token_seconds", lambda s: _distribution(s.time_to_first_token)),
    Reading("vllm:inter_token_latency_seconds", lambda s: _distribution(s.inter_token_latency)),
    Reading("vllm:e2e_request_latency_seconds", lambda s: _distribution(s.end_to_end_latency)),
    Reading("vllm:request_time_per_output_token_seconds", lambda s: _distribution(s.time_per_token)),
    Reading("vllm:request_queue_time_seconds", lambda s: _distribution(s.queue_time)),
    Reading("vllm:request_prefill_time_seconds", lambda s: _distribution(s.prefill_time)),
    Reading("vllm:request_inference_time_seconds", lambda s: _distribution(s.inference_time)),
    Reading("vllm:request_decode_time_seconds", lambda s: _distribution(s.decode_time)),
    Reading("vllm:request_prompt_tokens", lambda s: _distribution(s.prompt_length)),
    Reading("vllm:request_generation_tokens", lambda s: _distribution(s.generation_length)),
    Reading("vllm:request_max_num_generation_tokens", lambda s: _distribution(s.longest_generation)),
    Reading("vllm:request_params_n", lambda s: _distribution(s.requested_n)),
    Reading("vllm:request_params_max_tokens", lambda s: _distribution(s.requested_max_tokens)),
)


def generation_families(models: Iterable[GenerationStatistics]) -> Iterator[Family]:
    """Yield all families of language models."""
    listed = [(_generation_labels(model), model) for model in models]
    yield from read(GENERATION_STATES, listed)
    yield Family.of(
        "vllm:cache_config_info", [Point(1, {**labels, **_cache_config(model)}) for labels, model in listed]
    )
    adapters = [
        Point(time(), {**labels, **_adapter_use(model)}) for labels, model in listed if model.info().max_adapters
    ]
    yield Family.of("vllm:lora_requests_info", adapters)
    yield from read(GENERATION_REQUESTS, listed)


def _adapter_use(model: GenerationStatistics) -> dict[str, str]:
    running, waiting = model.adapters()
    return {
        "max_lora": str(model.info().max_adapters),
        "running_lora_adapters": ",".join(running),
        "waiting_lora_adapters": ",".join(waiting),
    }


def _engine(model: GenerationStatistics) -> dict[str, str]:
    info = model.info()
    return {"device": info.device, "context_length": str(info.context_length)}


def _cache_config(model: GenerationStatistics) -> dict[str, str]:
    info = model.info()
    blocks = info.kv_cache_tokens // info.kv_block_size if info.kv_block_size else 0
    stats = {
        "block_size": info.kv_block_size,
        "num_gpu_blocks": blocks,
        "kv_cache_size_tokens": info.kv_cache_tokens,
        "kv_cache_memory_bytes": info.kv_cache_bytes,
    }
    return {
        **{name: str(value) for name, value in stats.items() if value},
        "enable_prefix_caching": str(info.prefix_caching),
    }


def _generation_labels(model: GenerationStatistics) -> Labels:
    return Labels({"model_name": model.model_name, "engine": "0", "version": str(model.version)})
