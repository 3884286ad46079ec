"""Conversion of requests to TensorRT-LLM's LLM API: pure functions that need no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import messages
from ..driver import Refused

_SAME_NAME = ("min_tokens", "min_p", "stop_token_ids", "ignore_eos")
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
# The first releases whose sampler of the PyTorch backend supports them. Earlier ones use one random generator for all
# requests and ignore seeds.
_SINCE = {**dict.fromkeys(_PENALTIES, (1, 3)), "seed": (1, 4)}
_SEEDS = 1 << 64
_SUPPORTED_PARAMS = (
    *_SAME_NAME,
    *("n", "max_tokens", "temperature", "top_p", "top_k", "stop", "include_stop_str_in_output"),
    *("skip_special_tokens", "logit_bias", "logprobs", "truncate_prompt_tokens", "truncation_side"),
)


def supported_params(version: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parameters that this release supports with these arguments of the engine."""
    release = tuple(int(part) for part in version.split(".")[:2])
    since = (name for name, first in _SINCE.items() if release >= first)
    structured = ("structured",) if arguments.get("guided_decoding_backend") else ()
    return (*_SUPPORTED_PARAMS, *since, *structured)


def sampling(params: Mapping[str, Any], room: int, index: int = 0) -> dict[str, Any]:
    """Return the keywords of the API's `SamplingParams` for one sequence, without those whose values are objects.

    `room`: the maximum of its tokens; `index`: the sequence's number in its request.
    """
    given = {name: params[name] for name in (*_SAME_NAME, *_PENALTIES) if name in params}
    given["max_tokens"] = min(params.get("max_tokens", room), room)
    given["detokenize"] = False
    temperature = params.get("temperature", 1.0)
    if temperature == 0:
        given["top_k"] = 1
    else:
        # Always all three, as the API is greedy without any.
        given.update(temperature=temperature, top_p=params.get("top_p", 1.0), top_k=max(params.get("top_k", 0), 0))
    if params.get("seed") is not None:
        given["seed"] = (params["seed"] + index) % _SEEDS
    if params.get("logprobs") is not None:
        given["logprobs"] = max(params["logprobs"], 1)  # some releases return none for 0
    return given


def guide(kind: str, value: str) -> dict[str, Any]:
    """Return the keywords of the API's `GuidedDecodingParams`."""
    if kind == "json_object":
        return {"json_object": True}
    if kind in ("json", "regex", "grammar"):
        return {kind: value}
    raise Refused(f"TensorRT-LLM does not support structured output of kind '{kind}'", messages.UNSUPPORTED)


def usage(stats: Mapping[str, Any]) -> tuple[float, int, int]:
    """Return KV cache usage (0 to 1), prefix cache queries and hits (tokens) from an iteration's statistics."""
    cache = stats.get("kvCacheStats") or {}
    size = cache.get("tokensPerBlock", 0)
    hits = cache.get("reusedBlocks", 0) * size
    used = cache.get("usedNumBlocks", 0) / max(cache.get("maxNumBlocks", 0), 1)
    return used, hits + cache.get("missedBlocks", 0) * size, hits
