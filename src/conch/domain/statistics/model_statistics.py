# Compiled by mypyc in wheels.
"""Statistics of one model version: integer additions on the request path, for `/metrics` and the statistics endpoints.

The rules are those of Triton's statistics extension: success and fail count requests, queue includes cache hits,
compute durations do not, `inference_count` sums batch sizes and `execution_count` counts executions.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import time_ns
from typing import Final, NamedTuple

from conch.base.errors import FailureReason
from conch.domain.declared_metrics.request_metrics import RequestMetrics
from conch.domain.request import Span
from conch.domain.statistics.generation_statistics import GenerationStatistics
from conch.domain.statistics.summaries import LatencySummaries


class Duration:
    """Number of events and the sum of their durations in nanoseconds."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def __repr__(self) -> str:
        return f"Duration({self.count}, {self.ns} ns)"

    def add(self, ns: int) -> None:
        """Add an event that took `ns`."""
        self.count += 1
        # Timestamps of two processes may be slightly out of order; a counter must not decrease.
        if ns > 0:
            self.ns += ns


DEADLINE_STAGES: Final = ("estimate", "arrival", "queue", "execution", "late")
_MS: Final = 1_000_000
_SECOND: Final = 1_000_000_000
_DURATIONS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Upper bounds of the histograms, in the units of their families; `model_metrics` of a configuration may replace them.
DEFAULT_BUCKETS: Final[Mapping[str, tuple[float, ...]]] = {
    "nv_inference_first_response_histogram_ms": (100.0, 500.0, 2000.0, 5000.0),  # as in Triton
    "conch_request_duration_seconds": _DURATIONS_S,
    "conch_queue_duration_seconds": _DURATIONS_S,
    "conch_batch_size": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0),
}


class Histogram:
    """Histogram of durations by upper bounds, and their sum in nanoseconds. `counts` are not cumulative.

    `unit_ns` is the unit of the bounds that it is given.

    `examples` has the latest traced request of each bucket: its trace, duration and time (ns since the epoch).
    """

    __slots__ = ("_first_ns", "bounds_ns", "counts", "examples", "ns")

    def __init__(self, bounds: Sequence[float], unit_ns: int) -> None:
        self.bounds_ns = tuple([round(bound * unit_ns) for bound in bounds])
        self._first_ns = self.bounds_ns[0]
        self.counts = [0] * (len(bounds) + 1)  # the last for infinity
        self.ns = 0
        self.examples: dict[int, tuple[str, int, int]] = {}

    def __repr__(self) -> str:
        return f"Histogram({self.counts})"

    def add(self, ns: int) -> None:
        """Add a duration. Bounds are inclusive."""
        if ns <= self._first_ns:  # fast requests, and those that do not wait
            self.counts[0] += 1
        else:
            self.counts[bisect_left(self.bounds_ns, ns)] += 1
        if ns > 0:
            self.ns += ns

    def exemplify(self, ns: int, trace_id: str, now_ns: int) -> None:
        """Keep a duration that was added, of a traced request, as an example."""
        self.examples[bisect_left(self.bounds_ns, ns)] = (trace_id, ns, now_ns)


@dataclass(slots=True)
class BatchStatistics:
    """Durations of the executions of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class ResponseStatistics:
    """Durations of the n-th response of a decoupled model's requests."""

    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    empty_response: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class CacheStatistics:
    """Statistics of the server's response cache."""

    size: int  # maximum bytes
    used: int = 0  # bytes
    entries: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    lookup_ns: int = 0
    insertion_ns: int = 0


class ModelState(NamedTuple):
    """A model version at this moment."""

    ready: bool
    instances: int = 0  # 0 for ensembles
    queued: int = 0  # requests that no instance holds
    oldest_ns: int = 0  # monotonic time at which the oldest of them was queued
    busy_ns: int = 0  # time in which instances have held batches, summed over the instances
    restarts: int = 0  # attempts to replace a process that had exited
    processes: tuple[tuple[str, int], ...] = ()  # names of instances, and the ids of their processes
    ready_instances: int = 0


@dataclass(slots=True)
class ModelStatistics:
    """Statistics of one version of one model."""

    model_name: str
    version: int
    metric_tags: dict[str, str] = field(default_factory=dict)
    namespace: str = ""  # of the model's repository, "" without namespaces
    cached: bool = False  # whether the model uses the response cache
    last_inference_ms: int = 0  # wall clock, as Triton reports it
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    failures: dict[FailureReason, int] = field(default_factory=lambda: dict.fromkeys(FailureReason, 0))
    # Requests whose deadline was missed, by `DeadlineMissed.stage`, and "late" for responses after it.
    deadline_misses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DEADLINE_STAGES, 0))
    batches: dict[int, BatchStatistics] = field(default_factory=dict)
    responses: dict[int, ResponseStatistics] = field(default_factory=dict)
    pending: int = 0  # admitted, not yet executing
    load_duration_s: float = 0.0
    generation: GenerationStatistics | None = None  # of a language model
    state: Callable[[], ModelState] | None = None  # set by the model
    request_duration: Histogram = field(default_factory=lambda: Histogram(_DURATIONS_S, _SECOND))
    queue_duration: Histogram = field(default_factory=lambda: Histogram(_DURATIONS_S, _SECOND))
    batch_size_bounds: tuple[float, ...] = DEFAULT_BUCKETS["conch_batch_size"]
    # Time to the first response, of decoupled models and ensembles.
    first_response: Histogram | None = None
    # Successful requests that took longer than a budget, which is set while something needs the number.
    slow_ns: int = 0
    slow: int = 0
    summaries: LatencySummaries | None = None  # with --metrics-config=summary_latencies=true
    declared: RequestMetrics | None = None  # with --metrics-config=custom_metrics=FILE

    def set_buckets(self, chosen: Mapping[str, Sequence[float]], *, first_response: bool) -> None:
        """Replace the histograms by those with the buckets of the configuration, before the first request.

        `first_response`: whether the model has that histogram.
        """
        buckets = {**DEFAULT_BUCKETS, **chosen}
        self.request_duration = Histogram(buckets["conch_request_duration_seconds"], _SECOND)
        self.queue_duration = Histogram(buckets["conch_queue_duration_seconds"], _SECOND)
        self.batch_size_bounds = tuple(buckets["conch_batch_size"])
        if first_response:
            self.first_response = Histogram(buckets["nv_inference_first_response_histogram_ms"], _MS)

    def count_success(
        self,
        batch_size: int,
        *,
        total: int,
        queue: int,
        compute_input: int,
        compute_infer: int,
        compute_output: int,
        span: Span | None = None,
    ) -> None:
        """Count one successful request. Times are nanoseconds; an ensemble's are the sums over its steps."""
        if span is not None and span.trace_id:
            now_ns = time_ns()
            self.request_duration.exemplify(total, span.trace_id, now_ns)
            self.queue_duration.exemplify(queue, span.trace_id, now_ns)
        self.last_inference_ms = time_ns() // 1_000_000
        self.inference_count += batch_size
        self.success.add(total)
        if self.slow_ns and total > self.slow_ns:
            self.slow += 1
        self.queue.add(queue)
        self.request_duration.add(total)
        self.queue_duration.add(queue)
        self.compute_input.add(compute_input)
        self.compute_infer.add(compute_infer)
        self.compute_output.add(compute_output)
        if self.summaries is not None:
            self.summaries.success.add(total)
            self.summaries.queue.add(queue)
            self.summaries.compute_input.add(compute_input)
            self.summaries.compute_infer.add(compute_infer)
            self.summaries.compute_output.add(compute_output)

    def count_hit(self, total: int, lookup: int) -> None:
        """Count one cache hit: no inference, and no time in the queue."""
        self.last_inference_ms = time_ns() // 1_000_000
        self.success.add(total)
        if self.slow_ns and total > self.slow_ns:
            self.slow += 1
        self.queue.add(0)
        self.request_duration.add(total)
        self.queue_duration.add(0)
        self.cache_hit.add(lookup)
        if self.first_response is not None:
            self.first_response.add(total)
        if self.summaries is not None:
            self.summaries.success.add(total)
            self.summaries.queue.add(0)
            self.summaries.cache_hit.add(lookup)

    def count_miss(self, ns: int) -> None:
        """Count one cache miss, with the time of the look-up and the insertion."""
        self.cache_miss.add(ns)
        if self.summaries is not None:
            self.summaries.cache_miss.add(ns)

    def count_failure(self, total: int, reason: FailureReason) -> None:
        """Count one request that failed after `total` nanoseconds."""
        self.fail.add(total)
        self.failures[reason] += 1

    def count_execution(self, batch_size: int, started: int, input_done: int, infer_done: int, done: int) -> None:
        """Count one execution of `batch_size` inferences. Times are monotonic nanoseconds."""
        self.execution_count += 1
        batch = self.batches.get(batch_size)
        if batch is None:
            batch = self.batches[batch_size] = BatchStatistics()
        batch.compute_input.add(input_done - started)
        batch.compute_infer.add(infer_done - input_done)
        batch.compute_output.add(done - infer_done)
