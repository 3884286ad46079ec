# Compiled by mypyc in wheels.
"""Read what engine processes report: events of generations, load, properties. They are not trusted."""

from collections.abc import Mapping, Sequence
from typing import Any

from conch.base.errors import BackendError, Code, ConchError, InvalidRequest, Unavailable
from conch.domain.generation import (
    MAX_LOGPROBS,
    Delta,
    EngineInfo,
    EngineLoad,
    FinishReason,
    PromptTokens,
    SamplingParams,
    TokenLogprob,
    Usage,
)
from conch.server.backends.child.conch_child.ipc.wire import WireError
from conch.server.backends.processes import untrusted

_FINISHED = {reason.value: reason for reason in FinishReason}
_MAX_INT32 = 2**31 - 1
# Beyond the tokens that a request may generate: the last step of speculative decoding, and texts without tokens.
SLACK_TOKENS = 1024
# Characters of the longest tokens of common vocabularies; a text may come without its tokens.
_MAX_TOKEN_CHARS = 512
_MAX_ALTERNATIVES = MAX_LOGPROBS + 2  # with the sampled token
_ERROR_ITEMS = 2  # of the `end` of an event
_INTEGERS = ("max_adapters", "kv_cache_bytes", "kv_cache_tokens", "kv_block_size")
_FLAGS = ("kv_cache_taken", "prefix_caching", "priorities")
_LISTS = ("adapters", "image_placeholders", "supported_params")


class GenerationBudget:
    """What one request may still produce: `n` sequences of at most `max_tokens` each."""

    __slots__ = ("characters", "n", "prompts", "tokens")

    def __init__(self, n: int, max_tokens: int, prompts: int) -> None:
        self.n = n
        self.prompts = prompts  # descriptions of the prompt
        self.tokens = n * (max_tokens + SLACK_TOKENS)
        self.characters = self.tokens * _MAX_TOKEN_CHARS

    def take(self, tokens: int, characters: int) -> None:
        """Count what was generated. Raises WireError if it is more than the request allows."""
        self.tokens -= tokens
        self.characters -= characters
        if self.tokens < 0 or self.characters < 0:
            raise WireError("more tokens or text than the request allows")


def read_deltas(given: Any, budget: GenerationBudget) -> list[Delta]:
    """Return the deltas of an event. Raises WireError."""
    deltas: list[Delta] = []
    for fields in untrusted.array(given, "deltas"):
        if type(fields) is not list or not 6 <= len(fields) <= 7:
            raise WireError(f"a delta must be an array of 6 or 7 items, not {untrusted.shown(fields)}")
        index = untrusted.integer(fields[0], 0, budget.n - 1, "the index of a sequence")
        text = untrusted.text(fields[1], "generated text")
        token_ids = untrusted.integers(fields[2], 0, _MAX_INT32, "a token id")
        budget.take(len(token_ids), len(text) + 1)
        finish, stop_reason, logprobs = fields[3], fields[4], fields[5]
        if finish is not None and (type(finish) is not str or finish not in _FINISHED):
            raise WireError(f"unknown reason for the end of a sequence: {untrusted.shown(finish)}")
        if stop_reason is not None and type(stop_reason) not in (str, int):
            raise WireError(f"a stop reason must be a text or a token id, not {untrusted.shown(stop_reason)}")
        reason = None if finish is None else _FINISHED[finish]
        prompt = fields[6] if len(fields) > 6 else None
        if not logprobs and prompt is None:
            deltas.append(Delta(index, text, token_ids, reason, stop_reason))
            continue
        prompt_tokens = None if prompt is None else _prompt(prompt)
        if prompt_tokens is not None:
            budget.prompts -= 1
            if budget.prompts < 0:
                raise WireError("a prompt that the request does not ask for")
        listed = _logprobs(logprobs, len(token_ids))
        deltas.append(Delta(index, text, token_ids, reason, stop_reason, listed, prompt_tokens))
    return deltas


def read_end(end: Any) -> Usage | ConchError:
    """Return how a request has ended. Raises WireError."""
    if type(end) is list and len(end) == _ERROR_ITEMS:
        code, text = untrusted.error_fields(end)
        if code is Code.INVALID_ARG:
            return InvalidRequest(text)
        return Unavailable(text) if code is Code.UNAVAILABLE else BackendError(text, code)
    if type(end) is not list or not 3 <= len(end) <= 5:
        raise WireError(f"the end of a request must be an array of 2 to 5 items, not {untrusted.shown(end)}")
    counts = untrusted.integers(end[:3], 0, _MAX_INT32, "a number of tokens")
    # vLLM has no time for some requests.
    scheduled = untrusted.integer(end[3], 0, 2**63 - 1, "the time when a request was scheduled") if end[3:] else 0
    return Usage(counts[0], counts[1], counts[2], scheduled, _cut(end[4:]))


def _cut(fields: list[Any]) -> int:
    return untrusted.integer(fields[0], 0, _MAX_INT32, "a number of tokens that were cut") if fields else 0


def read_load(given: Any, load: EngineLoad) -> None:
    """Update the load of an engine. Raises WireError."""
    running, waiting, usage, queries, hits, preemptions = untrusted.items(given, 6, "the load of an engine")
    usage = untrusted.finite(usage, 0.0, 1.0, "the usage of the KV cache")
    counts = untrusted.integers([running, waiting, queries, hits, preemptions], 0, untrusted.MAX_COUNT, "a load")
    load.kv_cache_usage = usage
    load.running, load.waiting, load.prefix_cache_queries, load.prefix_cache_hits, load.preemptions = counts


def read_times(given: Any, begin: int, now: int) -> tuple[int, int, int, int]:
    """Return when a step began and ended, CPU time and wait; it was between `begin` and `now`. Raises WireError."""
    if not untrusted.array(given, "the times of a step"):
        return begin, now, 0, 0
    numbers = untrusted.integers(untrusted.items(given, 4, "the times of a step"), 0, 2**63 - 1, "a time of a step")
    ended = min(max(numbers[1], begin), now)
    started = min(max(numbers[0], begin), ended)
    return started, ended, min(numbers[2], now - begin), min(numbers[3], now - begin)


def engine_info(engine: str, fields: Mapping[str, Any]) -> EngineInfo:
    """Return the properties of a loaded engine. Raises WireError."""
    info: dict[str, Any] = {}
    for key, value in fields.items():
        what = f"'{key[:40]}' of the engine"
        if key in ("context_length", "max_running"):
            info[key] = untrusted.integer(value, 1, _MAX_INT32, what)
        elif key == "max_logprobs":
            info[key] = min(untrusted.integer(value, -1, _MAX_INT32, what), MAX_LOGPROBS)
        elif key in _INTEGERS:
            info[key] = untrusted.integer(value, 0, untrusted.MAX_COUNT, what)
        elif key in _FLAGS:
            info[key] = untrusted.flag(value, what)
        elif key in _LISTS:
            info[key] = tuple(untrusted.names(value, what))
        elif key == "gpu_memory_share":
            info[key] = untrusted.finite(value, 0.0, 1.0, what)
        elif key == "device":
            info[key] = untrusted.name(value, what)
        elif key == "chat_template":
            info[key] = untrusted.text(value, what)
        elif key == "special_tokens":
            info[key] = untrusted.labels(value)
        else:
            raise WireError(f"{what} is not known")
    if "context_length" not in info or "max_running" not in info:
        raise WireError("the engine reports no context_length or max_running")
    supported = frozenset(info.pop("supported_params", ())) & _PARAMS
    return EngineInfo(engine=engine, supported_params=supported, **info)


_PARAMS = frozenset(SamplingParams.__dataclass_fields__)


def _prompt(fields: Any) -> PromptTokens:
    if type(fields) is not list or not 4 <= len(fields) <= 5:
        raise WireError(f"a prompt must be an array of 4 or 5 items, not {untrusted.shown(fields)}")
    given, text, pieces, logprobs = fields[:4]
    if type(given) is int:
        token_ids: Sequence[int] = range(untrusted.integer(given, 0, _MAX_INT32, "the number of tokens"))
    else:
        token_ids = untrusted.integers(given, 0, _MAX_INT32, "a token id")
    return PromptTokens(
        token_ids,
        untrusted.text(text, "the text of a prompt"),
        [untrusted.text(piece, "the text of a token") for piece in untrusted.array(pieces, "the pieces of a prompt")],
        _logprobs(logprobs, len(token_ids)),
        _cut(fields[4:]),
    )


def _logprobs(given: Any, tokens: int) -> list[list[TokenLogprob]]:
    if len(untrusted.array(given, "log probabilities")) > tokens:
        raise WireError(f"log probabilities of {len(given)} tokens for {tokens}")
    listed: list[list[TokenLogprob]] = []
    for token in given:
        if len(untrusted.array(token, "log probabilities of a token")) > _MAX_ALTERNATIVES:
            raise WireError(f"log probabilities of {len(token)} alternatives to a token")
        listed.append([_logprob(alternative) for alternative in token])
    return listed


def _logprob(given: Sequence[Any]) -> TokenLogprob:
    if type(given) is not list or not 3 <= len(given) <= 4:
        raise WireError(f"a log probability must be an array of 3 or 4 items, not {untrusted.shown(given)}")
    token_id = untrusted.integer(given[0], 0, _MAX_INT32, "a token id")
    text, logprob = untrusted.text(given[1], "the text of a token"), untrusted.number(given[2], "a log probability")
    if len(given) == 3:
        return TokenLogprob(token_id, text, logprob)
    return TokenLogprob(token_id, text, logprob, untrusted.integer(given[3], 0, _MAX_INT32, "a rank"))
