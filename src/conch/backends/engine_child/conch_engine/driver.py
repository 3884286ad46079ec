"""What the loop wants of an engine that is driven step by step, and what such engines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Union

from . import messages

Prompt = Union[str, Sequence[int]]
Event = tuple[int, tuple[Any, ...], tuple[Any, ...] | None]
Log = Callable[[int, str], None]


class Refused(Exception):
    """An engine does not take a request, or a model; the text is for who has sent it."""

    def __init__(self, text: str, code: int = messages.INVALID_ARG) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


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
    def figures(self) -> tuple[int, int, float, int, int, int]:
        """Return how busy the engine is; see `messages`."""
