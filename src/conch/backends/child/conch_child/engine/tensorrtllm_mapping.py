"""Between this server's words for a request and those of TensorRT-LLM's LLM API: pure functions, which need no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import messages
from .driver import Refused

_SAME_NAME = ("min_tokens", "min_p", "stop_token_ids", "ignore_eos")
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
# The release from which on the sampler of the PyTorch backend looks at them. It used to draw for all requests from one
# generator, whatever their seeds.
_SINCE = {**dict.fromkeys(_PENALTIES, (1, 3)), "seed": (1, 4)}
_SEEDS = 1 << 64
_SUPPORTED_PARAMS = (
    *_SAME_NAME,
    *("n", "max_tokens", "temperature", "top_p", "top_k", "stop", "include_stop_str_in_output"),
    *("skip_special_tokens", "logit_bias", "logprobs", "truncate_prompt_tokens", "truncation_side"),
)


def supported_params(version: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parameters that this release honours with these arguments of the engine."""
    release = tuple(int(part) for part in version.split(".")[:2])
    since = (name for name, first in _SINCE.items() if release >= first)
    structured = ("structured",) if arguments.get("guided_decoding_backend") else ()
    return (*_SUPPORTED_PARAMS, *since, *structured)


def sampling(params: Mapping[str, Any], room: int, index: int = 0) -> dict[str, Any]:
    """Return the keywords of the API's `SamplingParams`, but for those that are objects, for one sequence.

    `room`: how many tokens fit into the context behind the prompt; `index`: which of the request's sequences it is.
    """
    given = {name: params[name] for name in (*_SAME_NAME, *_PENALTIES) if name in params}
    given["max_tokens"] = params.get("max_tokens", room)
    given["detokenize"] = False
    temperature = params.get("temperature", 1.0)
    if temperature == 0:
        given["top_k"] = 1
    else:
        # All of them: where none is given, the API is greedy.
        given.update(temperature=temperature, top_p=params.get("top_p", 1.0), top_k=max(params.get("top_k", 0), 0))
    if params.get("seed") is not None:
        given["seed"] = (params["seed"] + index) % _SEEDS
    if params.get("logprobs") is not None:
        given["logprobs"] = max(params["logprobs"], 1)  # 0 is none at all in some releases
    return given


def guide(kind: str, value: str) -> dict[str, Any]:
    """Return the keywords of the API's `GuidedDecodingParams`."""
    if kind == "json_object":
        return {"json_object": True}
    if kind in ("json", "regex", "grammar"):
        return {kind: value}
    raise Refused(f"TensorRT-LLM has no structured output of the kind '{kind}'", messages.UNSUPPORTED)


def room(prompt_tokens: int, params: Mapping[str, Any], context: int) -> int:
    """Return how many tokens fit behind the prompt. Raises Refused if they are fewer than are wanted."""
    left = context - prompt_tokens
    wanted = params.get("max_tokens", 1)
    if left < wanted:
        raise Refused(
            f"This model's maximum context length is {context} tokens. However, you requested "
            f"{prompt_tokens + wanted} tokens ({prompt_tokens} in the prompt, {wanted} in the completion)"
        )
    return left


def usage(stats: Mapping[str, Any]) -> tuple[float, int, int]:
    """Return from statistics of an iteration how full the KV cache is, and of tokens looked up in it and found."""
    cache = stats.get("kvCacheStats") or {}
    size = cache.get("tokensPerBlock", 0)
    found = cache.get("reusedBlocks", 0) * size
    full = cache.get("usedNumBlocks", 0) / max(cache.get("maxNumBlocks", 0), 1)
    return full, found + cache.get("missedBlocks", 0) * size, found
