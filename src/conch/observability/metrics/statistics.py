"""Counters of one model version: integer additions on the request path, read by `/metrics` and the statistics calls.

Both read the same object, so they cannot disagree. Counting rules are Triton's statistics extension: success and fail
count requests, queue includes cache hits, compute durations do not, `inference_count` sums batch sizes and
`execution_count` counts model runs.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from time import time_ns
from typing import TYPE_CHECKING

from conch.errors import FailureReason
from conch.observability.metrics.generation import GenerationStatistics

if TYPE_CHECKING:
    from conch.observability.metrics.summaries import LatencySummaries


class Duration:
    """How often something happened and how long it took in all, in nanoseconds."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def __repr__(self) -> str:
        return f"Duration({self.count}, {self.ns} ns)"

    def add(self, ns: int) -> None:
        """Count one more that took `ns`."""
        self.count += 1
        # Stamps of two processes may be out of order by a little; a counter must never fall.
        if ns > 0:
            self.ns += ns


# Upper bounds in milliseconds of the first-response histogram, Triton's; above the last comes infinity.
FIRST_RESPONSE_BOUNDS_MS = (100, 500, 2000, 5000)


class Histogram:
    """How many durations fell below each bound, and their sum in nanoseconds."""

    __slots__ = ("_bounds_ns", "_counts", "ns")

    def __init__(self, bounds_ms: Sequence[int]) -> None:
        self._bounds_ns = [bound * 1_000_000 for bound in bounds_ms]
        self._counts = [0] * (len(bounds_ms) + 1)
        self.ns = 0

    def __repr__(self) -> str:
        return f"Histogram({self.cumulative_ms()})"

    def add(self, ns: int) -> None:
        """Count one more that took `ns`. A bound belongs to what is below it."""
        self._counts[bisect_left(self._bounds_ns, ns)] += 1
        self.ns += max(ns, 0)

    def cumulative_ms(self) -> list[tuple[float, int]]:
        """Return (upper bound in milliseconds, how many were not above it), the last bound being infinity."""
        bounds = [*(bound / 1_000_000 for bound in self._bounds_ns), inf]
        return list(zip(bounds, accumulate(self._counts), strict=True))


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
    """Everything counted about the server's response cache."""

    size: int  # bytes that it may hold
    used: int = 0  # bytes that it holds
    entries: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    lookup_ns: int = 0
    insertion_ns: int = 0


@dataclass(slots=True)
class ModelStatistics:
    """Everything counted about one version of one model."""

    model_name: str
    version: int
    metric_tags: dict[str, str] = field(default_factory=dict)
    namespace: str = ""  # of the repository that the model is in, "" where there are no namespaces
    cached: bool = False  # whether answers may come from the cache
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
    batches: dict[int, BatchStatistics] = field(default_factory=dict)
    responses: dict[int, ResponseStatistics] = field(default_factory=dict)
    pending: int = 0  # admitted, not yet executing
    load_duration_s: float = 0.0
    generation: GenerationStatistics | None = None  # of a model that generates
    # From receiving to the first response; kept for models whose first response is not their whole answer.
    first_response: Histogram | None = None
    summaries: "LatencySummaries | None" = None  # where quantiles are wanted

    def count_success(
        self, batch_size: int, *, total: int, queue: int, compute_input: int, compute_infer: int, compute_output: int
    ) -> None:
        """Count one answered request. All times are nanoseconds; an ensemble's are the sums over its steps."""
        self.last_inference_ms = time_ns() // 1_000_000
        self.inference_count += batch_size
        self.success.add(total)
        self.queue.add(queue)
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
        """Count one request that was answered from the cache: no inference, and no time in the queue."""
        self.last_inference_ms = time_ns() // 1_000_000
        self.success.add(total)
        self.queue.add(0)
        self.cache_hit.add(lookup)
        if self.first_response is not None:
            self.first_response.add(total)
        if self.summaries is not None:
            self.summaries.success.add(total)
            self.summaries.queue.add(0)
            self.summaries.cache_hit.add(lookup)

    def count_miss(self, took: int) -> None:
        """Count one request whose answer was not in the cache: looking it up and keeping the answer took so long."""
        self.cache_miss.add(took)
        if self.summaries is not None:
            self.summaries.cache_miss.add(took)

    def count_failure(self, total: int, reason: FailureReason) -> None:
        """Count one request that was answered with an error after `total` nanoseconds."""
        self.fail.add(total)
        self.failures[reason] += 1

    def count_execution(self, batch_size: int, started: int, input_done: int, infer_done: int, done: int) -> None:
        """Count one run of the model on `batch_size` inferences. Times are monotonic nanoseconds."""
        self.execution_count += 1
        batch = self.batches.get(batch_size)
        if batch is None:
            batch = self.batches[batch_size] = BatchStatistics()
        batch.compute_input.add(input_done - started)
        batch.compute_infer.add(infer_done - input_done)
        batch.compute_output.add(done - infer_done)
