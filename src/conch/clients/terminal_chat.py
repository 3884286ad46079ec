"""A conversation with a language model on a terminal: its messages, settings and printed answers."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from conch.base.command_line.flag_values import BOOLEAN, value_kind
from conch.base.command_line.flags import flag_field
from conch.base.command_line.say import say
from conch.base.control_characters import printable_lines
from conch.base.errors import ConchError, InvalidRequest
from conch.clients.openai_client import Completion, ContextExceeded, OpenAIClient
from conch.clients.saved_chats import ChatMessage, SavedChat

INTERRUPTED = 130
_TURN = 2  # messages: the user's and the answer


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """The flags for answers, of `conch chat` and `conch run`."""

    system: str = flag_field("", "", "system prompt", value_kind("TEXT"))
    temperature: float | None = flag_field(None, "", "sampling temperature; 0 is greedy", value_kind("T", float))
    max_tokens: int | None = flag_field(None, "", "maximum number of tokens in an answer", value_kind("N", int))
    seed: int | None = flag_field(None, "", "seed of the sampling", value_kind("N", int))
    json: bool = flag_field(False, "", "print each answer as one line of JSON", BOOLEAN, bare=True)


class TerminalChat:
    """A model, the settings of its answers, and the messages so far."""

    def __init__(self, client: OpenAIClient, model: str, settings: AnswerSettings) -> None:
        self.model = model
        self.system = settings.system
        options = {"temperature": settings.temperature, "max_tokens": settings.max_tokens, "seed": settings.seed}
        self.settings: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        self.context_used = 0  # tokens of the last prompt and its answer
        self.context_limit = client.context_length(model)
        self.keeps_history = True  # whether later chats get what is typed in this one
        self._client = client
        self._as_json = settings.json
        self._messages: list[dict[str, str]] = []

    @property
    def turns(self) -> int:
        """How many messages the model gets, without the system prompt."""
        return len(self._messages)

    def clear(self) -> None:
        """Forget the messages; the settings stay."""
        self._messages.clear()
        self.context_used = 0

    def saved(self) -> SavedChat:
        """Return what a later chat needs to continue this one."""
        messages = tuple(ChatMessage(**message) for message in self._messages)
        return SavedChat(self.model, self.system, dict(self.settings), messages)

    def resume(self, chat: SavedChat) -> None:
        """Replace messages, system prompt and settings by those of a saved conversation; the model stays."""
        self.system, self.settings, self.context_used = chat.system, dict(chat.settings), 0
        self._messages = [asdict(message) for message in chat.messages]

    def answer(self, text: str) -> int:
        """Send a user message, print the streamed answer, then its speed; return the exit status.

        Ctrl-C ends the answer; its beginning stays in the conversation. The oldest messages are forgotten if the
        context has no room for all. Raises ConchError.
        """
        if not text:
            raise InvalidRequest("the prompt is empty")
        self._messages.append({"role": "user", "content": text})
        answer, status, forgotten = Completion(), 0, 0
        try:
            while True:
                try:
                    self._stream(self._messages[forgotten:], answer)
                    break
                except ContextExceeded:
                    forgotten += _TURN
                    if forgotten >= len(self._messages):
                        raise
        except KeyboardInterrupt:
            answer.finish_reason, status = "interrupted", INTERRUPTED
        except ConchError:
            self._messages.pop()
            raise
        del self._messages[:forgotten]
        self._messages.append({"role": "assistant", "content": answer.text})
        self.context_used = answer.prompt_tokens + answer.completion_tokens or self.context_used
        if self._as_json:
            print(json.dumps({"model": self.model, **asdict(answer)}), flush=True)
        else:
            print(flush=True)
            say(self._speed(answer, forgotten))
        return status

    def _stream(self, messages: Sequence[dict[str, str]], answer: Completion) -> None:
        """Request an answer and print its pieces. Raises ConchError."""
        from conch.clients.word_wrap import WordWrap  # imports rich, and conch run reads the settings of this module

        shown = printable_lines if sys.stdout.isatty() else str  # a program gets what the model has written
        wrap = WordWrap()
        system = [{"role": "system", "content": self.system}] if self.system else []
        with closing(self._client.chat(self.model, [*system, *messages], self.settings, answer)) as pieces:
            for piece in pieces:
                if not self._as_json:
                    print(wrap.wrapped(shown(piece)), end="", flush=True)

    def _speed(self, answer: Completion, forgotten: int) -> str:
        if answer.finish_reason == "interrupted":
            return "[interrupted]"
        parts = [f"{answer.completion_tokens} token{'s' if answer.completion_tokens != 1 else ''}"]
        if answer.first_s is not None:
            parts.append(f"first token after {answer.first_s * 1000:.0f} ms")
        if self.context_limit and self.context_used:
            parts.append(f"context {self.context_used}/{self.context_limit}")
        if answer.tokens_per_second is not None:
            parts.append(f"{answer.tokens_per_second:.0f} tokens/s")
        if answer.finish_reason == "length":
            parts.append("token limit reached")
        if forgotten:
            parts.append(f"the oldest {forgotten} messages no longer fit and are forgotten")
        return f"[{', '.join(parts)}]"
