"""What the loop wants of an engine that is driven step by step, and what such engines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Union

from . import messages

Prompt = Union[str, Sequence[int]]
Event = tuple[int, tuple[Any, ...], tuple[Any, ...] | None]
Log = Callable[[int, str], None]
T = TypeVar("T")


class Refused(Exception):
    """An engine does not take a request, or a model; the text is for who has sent it."""

    def __init__(self, text: str, code: int = messages.INVALID_ARG) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class DamagedModel(Refused):
    """A model's file is not in its format, or not complete."""


def completion_room(context: int, prompt_tokens: int, max_tokens: int | None) -> int:
    """Return how many tokens a completion may have: `max_tokens`, or what the context leaves.

    Raises Refused if that is too much, or nothing, in the words that clients know from vLLM's server.
    """
    room = context - prompt_tokens
    if not prompt_tokens:
        raise Refused("the prompt is empty: it has no tokens")
    if room >= 1 and (max_tokens or room) <= room:
        return max_tokens or room
    completion = f", {max_tokens} in the completion" if max_tokens else ""
    raise Refused(
        f"This model's maximum context length is {context} tokens. However, you requested "
        f"{prompt_tokens + (max_tokens or 0)} tokens ({prompt_tokens} in the prompt{completion}). "
        "Please reduce the length of the prompt or of the completion."
    )


def truncated(token_ids: Sequence[T], params: Mapping[str, Any], context: int) -> Sequence[T]:
    """Return the part of a prompt that `truncate_prompt_tokens` keeps: the last tokens, or the first."""
    if "truncate_prompt_tokens" not in params:
        return token_ids
    kept = kept_tokens(params, context)
    return token_ids[:kept] if params.get("truncation_side") == "right" else token_ids[-kept:]


def kept_tokens(params: Mapping[str, Any], context: int) -> int:
    """Return how many tokens of a prompt `truncate_prompt_tokens` keeps; -1 leaves room for the completion."""
    kept: int = params["truncate_prompt_tokens"]
    return kept if kept > 0 else max(context - (params.get("max_tokens") or 1), 1)


def prompt_of(
    token_ids: Sequence[int],
    params: Mapping[str, Any],
    decode: Callable[[list[list[int]]], Sequence[str]],
    logprobs: tuple[Any, ...] = (),
) -> tuple[Any, ...]:
    """Return what `messages` calls a prompt; `decode` shows special tokens."""
    ids = [int(each) for each in token_ids]
    if params.get("return_prompt") != "text" or not ids:
        return tuple(ids), "", (), logprobs
    text, *pieces = decode([ids, *([each] for each in ids)])
    return tuple(ids), text, tuple(pieces), logprobs


def prompt_alone(key: int, prompt: tuple[Any, ...]) -> Event:
    """Return all that is told of a request for its prompt alone."""
    return key, ((0, "", (), "length", None, (), prompt),), (len(prompt[0]), 0, 0, 0)


class Driver(ABC):
    """One engine with one model. `load` → (`add`, `abort`, `step`)*. All of it in one thread."""

    def __init__(self, log: Log) -> None:
        self.log = log

    @abstractmethod
    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Bring the model up and return what `EngineInfo` holds, by its names. Raises Refused with the cause.

        `options`: "name" and "version" of the model, its "directory", the "parameters" of its configuration, a
        "scratch" folder of the process. What it has in "shared_memory", by name, is removed after its end, too.
        """

    @abstractmethod
    def add(self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str) -> None:
        """Take a request. Raises Refused."""

    @abstractmethod
    def abort(self, key: int) -> None:
        """Forget a request, if it is still there, and free what it holds. Nothing is told of it any more."""

    @property
    @abstractmethod
    def wait_ms(self) -> int | None:
        """In how many milliseconds `step` has something to do: 0 now, None not before the next request."""

    @abstractmethod
    def step(self) -> list[Event]:
        """Compute the next tokens and return what is to be told."""

    @abstractmethod
    def stats(self) -> tuple[int, int, float, int, int, int]:
        """Return how busy the engine is; see `messages`."""
