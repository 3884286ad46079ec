"""The interface of engines that are driven step by step, and helpers for all engines' prompts."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, Union

from . import messages

Prompt = Union[str, Sequence[int]]
Event = tuple[int, tuple[Any, ...], tuple[Any, ...] | None]
Log = Callable[[int, str], None]
T = TypeVar("T")


# Of an engine that cannot change its adapters.
ADAPTERS_AT_LOAD = "this engine takes LoRA adapters only when the model is loaded: list them in multi_lora.json"


class Refused(Exception):
    """An engine refuses a request or a model. The text goes to the client."""

    def __init__(self, text: str, code: int = messages.INVALID_ARG) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


class DamagedModel(Refused):
    """A model's file is incomplete or not in its format."""


def completion_room(context: int, prompt_tokens: int, params: dict[str, Any]) -> int:
    """Return the maximum length of a completion in tokens: `max_tokens`, or what the context leaves.

    With `fit_max_tokens` it is the smaller of both.

    Raises Refused for an empty prompt or too little context, with the message of vLLM's server.
    """
    max_tokens, room = params.get("max_tokens"), context - prompt_tokens
    if not prompt_tokens:
        raise Refused("the prompt is empty: it has no tokens")
    if max_tokens and params.get("fit_max_tokens"):
        max_tokens = min(max_tokens, max(room, 1))
    if room >= 1 and (max_tokens or room) <= room:
        return max_tokens or room
    completion = f", {max_tokens} in the completion" if max_tokens else ""
    raise Refused(
        f"This model's maximum context length is {context} tokens. However, you requested "
        f"{prompt_tokens + (max_tokens or 0)} tokens ({prompt_tokens} in the prompt{completion}). "
        "Please reduce the length of the prompt or of the completion."
    )


def visible_gpus(count: int) -> str:
    """Return the first GPUs that this process may use, as the machine numbers them: "GPU 0, GPU 1"."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(number) for number in range(count)] if listed is None else listed.replace(" ", "").split(",")[:count]
    return ", ".join(f"GPU {name}" if name.isdecimal() else name for name in names)


def check_adapter(adapter: str, known: Iterable[str]) -> None:
    """Raise Refused for a LoRA adapter that the model does not have; "" is none."""
    names = list(known)
    if adapter and adapter not in names:
        raise Refused(f"LoRA adapter '{adapter}' is unknown; this model has: {', '.join(names) or 'none'}")


def truncated(token_ids: Sequence[T], params: dict[str, Any], context: int) -> Sequence[T]:
    """Apply `truncate_prompt_tokens`: keep the last tokens, or with `truncation_side` "right" the first.

    The number of tokens that were cut is kept in `params`, for `cut_tokens`.
    """
    if "truncate_prompt_tokens" not in params:
        return token_ids
    size = max_prompt_tokens(params, context)
    params["cut_tokens"] = max(len(token_ids) - size, 0)
    return token_ids[:size] if params.get("truncation_side") == "right" else token_ids[-size:]


def cut_tokens(params: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the last item of an *end* or *prompt* as `messages` defines it, () for a prompt that was not cut."""
    return (params["cut_tokens"],) if params.get("cut_tokens") else ()


def max_prompt_tokens(params: Mapping[str, Any], context: int) -> int:
    """Return the limit that `truncate_prompt_tokens` sets for a prompt; -1 leaves room for the completion."""
    size: int = params["truncate_prompt_tokens"]
    return size if size > 0 else max(context - (params.get("max_tokens") or 1), 1)


def describe_prompt(
    token_ids: Sequence[int],
    params: Mapping[str, Any],
    decode: Callable[[list[list[int]]], Sequence[str]],
) -> tuple[Any, ...]:
    """Return a *prompt* as `messages` defines it. `decode` must keep special tokens."""
    if params.get("return_prompt") == "count":
        return (len(token_ids), "", (), (), *cut_tokens(params))
    ids = [int(token_id) for token_id in token_ids]
    if params.get("return_prompt") != "text" or not ids:
        return (tuple(ids), "", (), (), *cut_tokens(params))
    text, *pieces = decode([ids, *([token_id] for token_id in ids)])
    return (tuple(ids), text, tuple(pieces), (), *cut_tokens(params))


def prompt_only_event(key: int, prompt: tuple[Any, ...]) -> Event:
    """Return the only event of a request with `prompt_only`."""
    tokens = prompt[0] if isinstance(prompt[0], int) else len(prompt[0])
    return key, ((0, "", (), "length", None, (), prompt),), (tokens, 0, 0, 0)


class Driver(ABC):
    """One engine with one model, for use by one thread. Order of calls: `load`, then `add`, `abort` and `step`."""

    def __init__(self, log: Log) -> None:
        self.log = log

    @abstractmethod
    def load(self, options: dict[str, Any]) -> dict[str, Any]:
        """Load the model and return the fields of `EngineInfo`. Raises Refused with the cause.

        `options`: "name" and "version" of the model, its "directory", the "parameters" of its configuration, a
        "scratch" folder of the process. The server removes that folder, and the shared memory that the process
        maps after the load, when the process ends.
        """

    @abstractmethod
    def add(self, key: int, prompt: Prompt, params: dict[str, Any], adapter: str) -> None:
        """Add a request. Raises Refused."""

    @abstractmethod
    def abort(self, key: int) -> None:
        """Drop a request and free its resources without further events; a no-op for one that has ended."""

    def set_adapter(self, name: str, path: str) -> None:  # noqa: ARG002 - for overrides
        """Load a LoRA adapter, or unload it if `path` is "". Raises Refused."""
        raise Refused(ADAPTERS_AT_LOAD, messages.UNSUPPORTED)

    @property
    @abstractmethod
    def wait_ms(self) -> int | None:
        """Milliseconds until `step` has work: 0 for now, None for not before the next request."""

    @abstractmethod
    def step(self) -> list[Event]:
        """Compute the next tokens and return their events."""

    @abstractmethod
    def stats(self) -> tuple[int, int, float, int, int, int]:
        """Return the engine's load as `messages` describes it."""
