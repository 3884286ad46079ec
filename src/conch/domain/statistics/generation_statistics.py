# Compiled by mypyc in wheels.
"""Statistics of the generations of one model version, for vLLM's families of `/metrics`."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf
from typing import Final

from conch.domain.generation import EngineInfo, EngineLoad, FinishReason, SamplingParams, Usage
from conch.domain.request import Timeline

# Upper bounds in seconds and tokens, as in vLLM, for its dashboards.
FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
TOKEN_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
N_BOUNDS = (1, 2, 5, 10, 20)

_NS: Final = 1e9


class Distribution:
    """A Prometheus histogram: counts by upper bounds, and the sum of the values."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def __repr__(self) -> str:
        return f"Distribution({self.count} values, {self.total:g} in all)"

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self._counts)

    def add(self, value: float) -> None:
        """Add a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """Return pairs of upper bound and cumulative count; the last bound is infinity."""
        return list(zip([*self._bounds, inf], accumulate(self._counts), strict=True))


class GenerationStatistics:
    """Counters and distributions of one model version. Arguments are in nanoseconds."""

    def __init__(
        self, model_name: str, version: int, load: Callable[[], EngineLoad], info: Callable[[], EngineInfo]
    ) -> None:
        self.model_name = model_name
        self.version = version
        self.load = load
        self.info = info  # with defaults until the engine is loaded
        # Names of the LoRA adapters of running requests, and of those that only waiting ones have.
        self.adapters: Callable[[], tuple[Sequence[str], Sequence[str]]] = lambda: ((), ())
        self.prompt_tokens = 0
        self.cached_tokens = 0  # of the prompts, from the prefix cache
        self.generation_tokens = 0
        self.truncated_prompts = 0
        self.finished = dict.fromkeys(FinishReason, 0)
        self.time_to_first_token = Distribution(FIRST_TOKEN_BOUNDS)
        self.inter_token_latency = Distribution(INTER_TOKEN_BOUNDS)
        self.end_to_end_latency = Distribution(REQUEST_BOUNDS)
        self.queue_time = Distribution(REQUEST_BOUNDS)
        self.prefill_time = Distribution(REQUEST_BOUNDS)
        self.decode_time = Distribution(REQUEST_BOUNDS)
        self.inference_time = Distribution(REQUEST_BOUNDS)
        self.time_per_token = Distribution(INTER_TOKEN_BOUNDS)
        self.prompt_length = Distribution(TOKEN_BOUNDS)
        self.generation_length = Distribution(TOKEN_BOUNDS)
        self.longest_generation = Distribution(TOKEN_BOUNDS)
        self.requested_n = Distribution(N_BOUNDS)
        self.requested_max_tokens = Distribution(TOKEN_BOUNDS)

    def __repr__(self) -> str:
        return f"GenerationStatistics({self.model_name}/{self.version}, {self.generation_tokens} tokens)"

    def first_token(self, ns: int) -> None:
        """Count a request's first token, `ns` after it was received."""
        self.time_to_first_token.add(ns / _NS)

    def next_tokens(self, ns: int) -> None:
        """Count the tokens of a later step, `ns` after the previous step."""
        self.inter_token_latency.add(ns / _NS)

    def ended(
        self,
        timeline: Timeline,
        usage: Usage,
        reasons: Sequence[FinishReason],
        params: SamplingParams,
        longest: int,
    ) -> None:
        """Count a request that the engine has finished. `longest` is the tokens of its longest sequence."""
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.truncated_prompts += usage.cut_tokens > 0
        self.end_to_end_latency.add((timeline.done - timeline.received) / _NS)
        decode = (timeline.done - timeline.started) / _NS
        self.decode_time.add(decode)
        tokens = usage.completion_tokens / params.n
        if tokens > 1:
            self.time_per_token.add(decode / (tokens - 1))
        if usage.scheduled:
            self.queue_time.add(max(usage.scheduled - timeline.received, 0) / _NS)
            self.prefill_time.add(max(timeline.started - usage.scheduled, 0) / _NS)
            self.inference_time.add((timeline.done - usage.scheduled) / _NS)
        self.prompt_length.add(usage.prompt_tokens)
        self.generation_length.add(usage.completion_tokens)
        self.longest_generation.add(longest)
        self.requested_n.add(params.n)
        if params.max_tokens is not None:
            self.requested_max_tokens.add(params.max_tokens)
        for reason in reasons:
            self.finished[reason] += 1

    def aborted(self, reasons: Sequence[FinishReason], sequences: int) -> None:
        """Count a request that its caller cancelled, with `reasons` of the sequences that had already ended."""
        for reason in reasons:
            self.finished[reason] += 1
        self.finished[FinishReason.ABORT] += sequences - len(reasons)
