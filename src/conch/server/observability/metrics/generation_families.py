"""The families of language models: vLLM's, for every engine.

Labels are vLLM's `model_name` and `engine`, and `version`, because a repository can have several.
"""

from collections.abc import Iterable, Iterator

from conch.domain.exposition import Buckets, Family, Labels, Point
from conch.domain.metrics import vllm
from conch.domain.statistics.generation_statistics import Distribution, GenerationStatistics
from conch.server.observability.metrics.reading import LabelledReading, Reading, read


def _buckets(distribution: Distribution) -> Buckets:
    bounds, counts = zip(*distribution.cumulative(), strict=True)
    return Buckets(bounds, counts, distribution.total)


STATES: tuple[Reading[GenerationStatistics] | LabelledReading[GenerationStatistics], ...] = (
    Reading(vllm.REQUESTS_RUNNING, lambda s: s.load().running),
    Reading(vllm.REQUESTS_WAITING, lambda s: s.load().waiting),
    Reading(vllm.KV_CACHE_USAGE, lambda s: s.load().kv_cache_usage),
    Reading(vllm.PREFIX_CACHE_QUERIES, lambda s: s.load().prefix_cache_queries),
    Reading(vllm.PREFIX_CACHE_HITS, lambda s: s.load().prefix_cache_hits),
    Reading(vllm.PREEMPTIONS, lambda s: s.load().preemptions),
    LabelledReading(
        vllm.SLEEP_STATE,
        "sleep_state",
        lambda s: [("awake", int(not s.load().stopped)), ("discard_all", int(s.load().stopped))],
    ),
)
REQUESTS: tuple[Reading[GenerationStatistics] | LabelledReading[GenerationStatistics], ...] = (
    Reading(vllm.PROMPT_TOKENS, lambda s: s.prompt_tokens),
    Reading(vllm.PROMPT_TOKENS_CACHED, lambda s: s.cached_tokens),
    Reading(vllm.GENERATION_TOKENS, lambda s: s.generation_tokens),
    # Series with the value 0 are included, so that the first one is an increase.
    LabelledReading(
        vllm.REQUEST_SUCCESS,
        "finished_reason",
        lambda s: [(reason.value, count) for reason, count in s.finished.items()],
    ),
    Reading(vllm.TIME_TO_FIRST_TOKEN, lambda s: _buckets(s.time_to_first_token)),
    Reading(vllm.INTER_TOKEN_LATENCY, lambda s: _buckets(s.inter_token_latency)),
    Reading(vllm.REQUEST_LATENCY, lambda s: _buckets(s.end_to_end_latency)),
    Reading(vllm.TIME_PER_OUTPUT_TOKEN, lambda s: _buckets(s.time_per_token)),
    Reading(vllm.QUEUE_TIME, lambda s: _buckets(s.queue_time)),
    Reading(vllm.PREFILL_TIME, lambda s: _buckets(s.prefill_time)),
    Reading(vllm.INFERENCE_TIME, lambda s: _buckets(s.inference_time)),
    Reading(vllm.DECODE_TIME, lambda s: _buckets(s.decode_time)),
    Reading(vllm.PROMPT_LENGTH, lambda s: _buckets(s.prompt_length)),
    Reading(vllm.GENERATION_LENGTH, lambda s: _buckets(s.generation_length)),
    Reading(vllm.LONGEST_GENERATION, lambda s: _buckets(s.longest_generation)),
    Reading(vllm.REQUESTED_N, lambda s: _buckets(s.requested_n)),
    Reading(vllm.REQUESTED_MAX_TOKENS, lambda s: _buckets(s.requested_max_tokens)),
)


def generation_families(models: Iterable[GenerationStatistics]) -> Iterator[Family]:
    """Yield all families of language models."""
    listed = [(_labels(model), model) for model in models]
    yield from read(STATES, listed)
    yield Family.of(vllm.CACHE_CONFIG, [Point(1, {**labels, **_cache(model)}) for labels, model in listed])
    yield from read(REQUESTS, listed)


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


def _labels(model: GenerationStatistics) -> Labels:
    return Labels({"model_name": model.model_name, "engine": "0", "version": str(model.version)})
