"""The families of `/metrics`, computed from the statistics for each scrape.

The request path only adds integers (see `statistics`). `docs/reference/metrics.md` lists all families.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from conch.errors import FailureReason
from conch.metric_catalog.metric import Kind
from conch.observability.metrics.custom import MetricSample, custom_families, label_name
from conch.observability.metrics.exposition import Family, Point, histogram_points, pieces, render, summary_points
from conch.observability.metrics.generation_families import generation_families
from conch.observability.metrics.host import HostMeter, HostUsage
from conch.observability.metrics.loop_lag import LoopLag, lag_families
from conch.observability.metrics.statistics import CacheStatistics, Duration, ModelStatistics
from conch.observability.metrics.summaries import LatencySummaries, Summary
from conch.options.server_options import ServerOptions


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """A family with one series for each model version."""

    name: str
    kind: Kind
    help: str
    value: Callable[[ModelStatistics], float]


@dataclass(frozen=True, slots=True)
class SummaryFamily:
    """A family with quantiles for each model version; `cached`: only for those with a cache."""

    name: str
    help: str
    value: Callable[[LatencySummaries], Summary]
    cached: bool = False


@dataclass(frozen=True, slots=True)
class CacheFamily:
    """A family with one series for the server's cache."""

    name: str
    help: str
    value: Callable[[CacheStatistics], float]


@dataclass(frozen=True, slots=True)
class HostFamily:
    """A family with one series for the machine."""

    name: str
    help: str
    value: Callable[[HostUsage], float]


@dataclass(frozen=True, slots=True)
class RequestMemory:
    """Statistics of the memory for request bodies, with the requests refused and uploads evicted at its limit."""

    limit_bytes: int
    used_bytes: int
    refused: int
    evicted: int


@dataclass(frozen=True, slots=True)
class MemoryFamily:
    """A family with one series for the memory of request bodies."""

    name: str
    kind: Kind
    help: str
    value: Callable[[RequestMemory], float]


def _us(duration: Duration) -> int:
    return duration.ns // 1000


COUNTS = (
    ModelFamily("nv_inference_request_success", "counter", "Successful inference requests.", lambda s: s.success.count),
    ModelFamily(
        "nv_inference_count",
        "counter",
        "Inferences: a request with a batch of n counts n times. Cached responses do not count.",
        lambda s: s.inference_count,
    ),
    ModelFamily(
        "nv_inference_exec_count",
        "counter",
        "Executions of the model: a batch of several requests counts once. Cached responses do not count.",
        lambda s: s.execution_count,
    ),
)
FAILURES = "nv_inference_request_failure"
_FAILURES_HELP = "Failed inference requests, by reason."
LATENCIES = (
    ModelFamily(
        "nv_inference_request_duration_us",
        "counter",
        "Cumulative microseconds from the receipt of requests to their responses. Only successful requests count.",
        lambda s: _us(s.success),
    ),
    ModelFamily(
        "nv_inference_queue_duration_us",
        "counter",
        "Cumulative microseconds of requests waiting for an instance.",
        lambda s: _us(s.queue),
    ),
    ModelFamily(
        "nv_inference_compute_input_duration_us",
        "counter",
        "Cumulative microseconds of preparing inputs.",
        lambda s: _us(s.compute_input),
    ),
    ModelFamily(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Cumulative microseconds of executing the model.",
        lambda s: _us(s.compute_infer),
    ),
    ModelFamily(
        "nv_inference_compute_output_duration_us",
        "counter",
        "Cumulative microseconds of preparing outputs.",
        lambda s: _us(s.compute_output),
    ),
)
MODEL_CACHE = (
    ModelFamily(
        "nv_cache_num_hits_per_model",
        "counter",
        "Cache hits.",
        lambda s: s.cache_hit.count,
    ),
    ModelFamily(
        "nv_cache_hit_duration_per_model",
        "counter",
        "Cumulative microseconds of look-ups of cache hits.",
        lambda s: _us(s.cache_hit),
    ),
    ModelFamily(
        "nv_cache_num_misses_per_model",
        "counter",
        "Cache misses.",
        lambda s: s.cache_miss.count,
    ),
    ModelFamily(
        "nv_cache_miss_duration_per_model",
        "counter",
        "Cumulative microseconds of look-ups of cache misses and insertions.",
        lambda s: _us(s.cache_miss),
    ),
)
SERVER_CACHE = (
    CacheFamily("nv_cache_util", "Share of the cache in use, 0 to 1.", lambda c: c.used / c.size),
    CacheFamily("nv_cache_num_entries", "Responses in the cache.", lambda c: c.entries),
    CacheFamily("nv_cache_num_hits", "Cache hits.", lambda c: c.hits),
    CacheFamily("nv_cache_num_misses", "Cache misses.", lambda c: c.misses),
    CacheFamily("nv_cache_num_lookups", "Cache look-ups.", lambda c: c.hits + c.misses),
    CacheFamily("nv_cache_num_evictions", "Evicted responses.", lambda c: c.evictions),
    CacheFamily(
        "nv_cache_lookup_duration", "Cumulative microseconds of cache look-ups.", lambda c: c.lookup_ns // 1000
    ),
    CacheFamily(
        "nv_cache_insertion_duration",
        "Cumulative microseconds of cache insertions.",
        lambda c: c.insertion_ns // 1000,
    ),
)
PENDING = ModelFamily(
    "nv_inference_pending_request_count", "gauge", "Requests that are not executing yet.", lambda s: s.pending
)
LOAD_DURATION = ModelFamily(
    "nv_model_load_duration_secs", "gauge", "Duration of the model's load in seconds.", lambda s: s.load_duration_s
)
FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
_FIRST_RESPONSE_HELP = (
    "Milliseconds from the receipt of a request to its first response, of decoupled models and ensembles."
)
SUMMARIES = (
    SummaryFamily(
        "nv_inference_request_summary_us",
        "Microseconds from the receipt of a request to its response, quantiles of the last minute.",
        lambda s: s.success,
    ),
    SummaryFamily(
        "nv_inference_queue_summary_us",
        "Microseconds of a request waiting for an instance, quantiles of the last minute.",
        lambda s: s.queue,
    ),
    SummaryFamily(
        "nv_inference_compute_input_summary_us",
        "Microseconds of preparing a request's inputs, quantiles of the last minute.",
        lambda s: s.compute_input,
    ),
    SummaryFamily(
        "nv_inference_compute_infer_summary_us",
        "Microseconds of executing the model for a request, quantiles of the last minute.",
        lambda s: s.compute_infer,
    ),
    SummaryFamily(
        "nv_inference_compute_output_summary_us",
        "Microseconds of preparing a request's outputs, quantiles of the last minute.",
        lambda s: s.compute_output,
    ),
    SummaryFamily(
        "nv_cache_hit_summary_per_model",
        "Microseconds of the look-up of a cache hit, quantiles of the last minute.",
        lambda s: s.cache_hit,
        cached=True,
    ),
    SummaryFamily(
        "nv_cache_miss_summary_per_model",
        "Microseconds of the look-up of a cache miss and the insertion, quantiles of the last minute.",
        lambda s: s.cache_miss,
        cached=True,
    ),
)
HOST = (
    HostFamily("nv_cpu_utilization", "Share of CPU time in use, 0 to 1.", lambda u: u.cpu_utilization),
    HostFamily("nv_cpu_memory_total_bytes", "Memory of the machine in bytes.", lambda u: u.memory_total_bytes),
    HostFamily("nv_cpu_memory_used_bytes", "Memory in use in bytes.", lambda u: u.memory_used_bytes),
)
REQUEST_MEMORY = (
    MemoryFamily(
        "conch_request_memory_limit_bytes",
        "gauge",
        "Maximum bytes of request bodies in memory, of all connections.",
        lambda m: m.limit_bytes,
    ),
    MemoryFamily(
        "conch_request_memory_used_bytes",
        "gauge",
        "Bytes of request bodies in memory.",
        lambda m: m.used_bytes,
    ),
    MemoryFamily(
        "conch_request_memory_refused_total",
        "counter",
        "Requests that were refused because the memory for request bodies is in use.",
        lambda m: m.refused,
    ),
    MemoryFamily(
        "conch_request_memory_evicted_total",
        "counter",
        "Uploads without progress that were ended because other requests needed the memory.",
        lambda m: m.evicted,
    ),
)


class Metrics:
    """The metrics of one server.

    `statistics` returns those of all model versions, `samples` the custom metrics of models. `cache` has those of the
    response cache, `request_memory` returns those of the memory for request bodies, and `lag` has those of the event
    loop; each is None if there is none.
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
    ) -> None:
        self._statistics = statistics
        self._samples = samples
        self._options = options
        self._cache = cache
        self._request_memory = request_memory
        self._lag = lag
        self._host = HostMeter(options.metrics_interval_ms / 1000) if options.allow_cpu_metrics else None

    def render(self) -> bytes:
        """Return the text of a scrape."""
        return render(self.collect())

    def collect(self) -> list[Family]:
        """Return all families. Custom metrics with the names of other families are omitted."""
        return list(self._families())

    def pieces(self) -> Iterator[bytes]:
        """Return the text of a scrape in pieces."""
        for family in self._families():
            yield from pieces(family)

    def _families(self) -> Iterator[Family]:
        names: set[str] = set()
        for family in chain(
            self._of_models(list(self._statistics())),
            self._of_cache(),
            self._of_host(),
            self._of_requests(),
            () if self._lag is None else lag_families(self._lag),
        ):
            names.add(family.name)
            yield family
        yield from custom_families(self._samples(), reserved=names)

    def _of_models(self, models: list[ModelStatistics]) -> Iterator[Family]:
        yield _family(COUNTS[0], models)
        yield _failures(models)
        for family in COUNTS[1:]:
            yield _family(family, models)
        if self._options.counter_latencies:
            for family in LATENCIES:
                yield _family(family, models)
        if self._options.histogram_latencies:
            yield _first_responses(models)
        if self._options.summary_latencies:
            for summary in SUMMARIES:
                yield _summaries(summary, models, self._options.summary_quantiles)
        yield _family(PENDING, models)
        yield _family(LOAD_DURATION, models)
        for family in MODEL_CACHE:
            yield _family(family, [model for model in models if model.cached])
        yield from generation_families(model.generation for model in models if model.generation is not None)

    def _of_cache(self) -> Iterator[Family]:
        if self._cache is not None:
            for family in SERVER_CACHE:
                yield Family(family.name, "gauge", family.help, [Point(family.value(self._cache))])

    def _of_requests(self) -> Iterator[Family]:
        if self._request_memory is not None:
            memory = self._request_memory()
            for family in REQUEST_MEMORY:
                yield Family(family.name, family.kind, family.help, [Point(family.value(memory))])

    def _of_host(self) -> Iterator[Family]:
        usage = self._host.usage() if self._host else None
        if usage is not None:
            for family in HOST:
                yield Family(family.name, "gauge", family.help, [Point(family.value(usage))])


def _family(family: ModelFamily, models: Iterable[ModelStatistics]) -> Family:
    points = [Point(family.value(model), _labels(model)) for model in models]
    return Family(family.name, family.kind, family.help, points)


def _failures(models: Iterable[ModelStatistics]) -> Family:
    """Return the failures. Series with the value 0 are included, so that the first failure is an increase."""
    points = [
        Point(model.failures[reason], {**_labels(model), "reason": reason.value})
        for model in models
        for reason in FailureReason
    ]
    return Family(FAILURES, "counter", _FAILURES_HELP, points)


def _first_responses(models: Iterable[ModelStatistics]) -> Family:
    points: list[Point] = []
    for model in models:
        if model.first_response is not None:
            histogram = model.first_response
            points += histogram_points(histogram.cumulative_ms(), histogram.ns / 1_000_000, _labels(model))
    return Family(FIRST_RESPONSE, "histogram", _FIRST_RESPONSE_HELP, points)


def _summaries(family: SummaryFamily, models: Iterable[ModelStatistics], quantiles: Sequence[float]) -> Family:
    points: list[Point] = []
    for model in models:
        if model.summaries is not None and (model.cached or not family.cached):
            summary = family.value(model.summaries)
            found = zip(quantiles, summary.quantiles_us(quantiles), strict=True)
            points += summary_points(found, summary.ns // 1000, summary.count, _labels(model))
    return Family(family.name, "summary", family.help, points)


def _labels(model: ModelStatistics) -> dict[str, str]:
    tags = {label_name(f"_{key}"): value for key, value in model.metric_tags.items()}
    namespace = {"namespace": model.namespace} if model.namespace else {}
    return {**tags, "model": model.model_name, **namespace, "version": str(model.version)}
