"""The families of language models: vLLM's, for every engine.

Labels are vLLM's `model_name` and `engine`, and `version`, because a repository can have several.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from conch.generation import EngineLoad
from conch.metric_catalog.metric import Kind
from conch.observability.metrics.exposition import Family, Point, histogram_points
from conch.observability.metrics.generation import Distribution, GenerationStatistics


@dataclass(frozen=True, slots=True)
class LoadFamily:
    """A family of the load of an engine."""

    name: str
    kind: Kind
    help: str
    value: Callable[[EngineLoad], float]


@dataclass(frozen=True, slots=True)
class TokenFamily:
    """A counter over all requests."""

    name: str
    help: str
    value: Callable[[GenerationStatistics], float]


@dataclass(frozen=True, slots=True)
class DistributionFamily:
    """A histogram over requests or tokens."""

    name: str
    help: str
    value: Callable[[GenerationStatistics], Distribution]


LOAD = (
    LoadFamily("vllm:num_requests_running", "gauge", "Requests running in the engine.", lambda e: e.running),
    LoadFamily("vllm:num_requests_waiting", "gauge", "Requests waiting in the engine.", lambda e: e.waiting),
    LoadFamily(
        "vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use, 0 to 1.", lambda e: e.kv_cache_usage
    ),
    LoadFamily(
        "vllm:prefix_cache_queries_total",
        "counter",
        "Tokens of prompts that were looked up in the prefix cache.",
        lambda e: e.prefix_cache_queries,
    ),
    LoadFamily(
        "vllm:prefix_cache_hits_total",
        "counter",
        "Tokens of prompts that were found in the prefix cache.",
        lambda e: e.prefix_cache_hits,
    ),
    LoadFamily("vllm:num_preemptions_total", "counter", "Preempted requests.", lambda e: e.preemptions),
)
SLEEP = "vllm:engine_sleep_state"
_SLEEP_HELP = "1 for the state of the engine: awake, or discard_all if it is stopped until the next request."
CACHE = "vllm:cache_config_info"
_CACHE_HELP = "Size of the KV cache in labels, as far as the engine reports it. The value is 1."
TOKENS = (
    TokenFamily("vllm:prompt_tokens_total", "Tokens of prompts.", lambda s: s.prompt_tokens),
    TokenFamily(
        "vllm:prompt_tokens_cached_total", "Tokens of prompts from the prefix cache.", lambda s: s.cached_tokens
    ),
    TokenFamily("vllm:generation_tokens_total", "Generated tokens.", lambda s: s.generation_tokens),
)
FINISHED = "vllm:request_success_total"
_FINISHED_HELP = "Finished sequences, by reason."
DISTRIBUTIONS = (
    DistributionFamily(
        "vllm:time_to_first_token_seconds",
        "Seconds from the receipt of a request to its first token.",
        lambda s: s.time_to_first_token,
    ),
    DistributionFamily(
        "vllm:inter_token_latency_seconds",
        "Seconds between two steps with tokens of a request.",
        lambda s: s.inter_token_latency,
    ),
    DistributionFamily(
        "vllm:e2e_request_latency_seconds",
        "Seconds from the receipt of a request to its end.",
        lambda s: s.end_to_end_latency,
    ),
    DistributionFamily(
        "vllm:request_time_per_output_token_seconds",
        "Seconds from the first token to the last, divided by the number of tokens after the first.",
        lambda s: s.time_per_token,
    ),
    DistributionFamily(
        "vllm:request_queue_time_seconds",
        "Seconds from the receipt of a request to the engine's first step for it.",
        lambda s: s.queue_time,
    ),
    DistributionFamily(
        "vllm:request_prefill_time_seconds",
        "Seconds from the engine's first step for a request to its first token.",
        lambda s: s.prefill_time,
    ),
    DistributionFamily(
        "vllm:request_inference_time_seconds",
        "Seconds from the engine's first step for a request to its last token.",
        lambda s: s.inference_time,
    ),
    DistributionFamily(
        "vllm:request_decode_time_seconds", "Seconds from the first token to the last.", lambda s: s.decode_time
    ),
    DistributionFamily("vllm:request_prompt_tokens", "Tokens of a request's prompt.", lambda s: s.prompt_length),
    DistributionFamily(
        "vllm:request_generation_tokens", "Generated tokens of a request.", lambda s: s.generation_length
    ),
    DistributionFamily("vllm:request_params_n", "Requested sequences (n).", lambda s: s.requested_n),
    DistributionFamily("vllm:request_params_max_tokens", "Requested max_tokens.", lambda s: s.requested_max_tokens),
)


def generation_families(models: Iterable[GenerationStatistics]) -> Iterator[Family]:
    """Yield all families of language models."""
    listed = list(models)
    for load in LOAD:
        points = [Point(load.value(model.load()), _labels(model)) for model in listed]
        yield Family(load.name, load.kind, load.help, points)
    states = [
        Point(float(model.load().stopped is stopped), {**_labels(model), "sleep_state": state})
        for model in listed
        for state, stopped in (("awake", False), ("discard_all", True))
    ]
    yield Family(SLEEP, "gauge", _SLEEP_HELP, states)
    yield Family(CACHE, "gauge", _CACHE_HELP, [Point(1, {**_labels(model), **_cache(model)}) for model in listed])
    for tokens in TOKENS:
        points = [Point(tokens.value(model), _labels(model)) for model in listed]
        yield Family(tokens.name, "counter", tokens.help, points)
    # Series with the value 0 are included, so that the first one is an increase.
    points = [
        Point(count, {**_labels(model), "finished_reason": reason.value})
        for model in listed
        for reason, count in model.finished.items()
    ]
    yield Family(FINISHED, "counter", _FINISHED_HELP, points)
    for family in DISTRIBUTIONS:
        points = []
        for model in listed:
            distribution = family.value(model)
            points += histogram_points(distribution.cumulative(), distribution.total, _labels(model))
        yield Family(family.name, "histogram", family.help, points)


def _cache(model: GenerationStatistics) -> dict[str, str]:
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


def _labels(model: GenerationStatistics) -> dict[str, str]:
    return {"model_name": model.model_name, "engine": "0", "version": str(model.version)}
