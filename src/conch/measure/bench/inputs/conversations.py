"""Conversations of several turns, which grow with the server's answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from conch.measure.bench.generator import Answer, PreparedRequest, Script, ScriptSource
from conch.measure.bench.input_settings import OpenAiRoute
from conch.measure.bench.inputs.openai_request import Message, OpenAiEncoder, user_message
from conch.measure.bench.inputs.prompts import UniqueWords
from conch.measure.bench.inputs.sequences import CancellationPattern

_OK = 200


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one user says, turn by turn, and the maximum number of tokens of each answer."""

    prompts: Sequence[str]
    output_tokens: Sequence[int | None]


class ConversationScript(Script):
    """Sends the turns of one conversation; it ends early when an answer fails."""

    def __init__(self, source: "ConversationSource", conversation: Conversation, number: int) -> None:
        self._source = source
        self._conversation = conversation
        self._number = number
        self._messages: list[Message] = []
        self._turn = 0

    def next(self, previous: Answer | None) -> PreparedRequest | None:
        turn = self._turn
        if turn == len(self._conversation.prompts):
            return None
        if turn:
            if previous is None or previous.status != _OK:
                return None
            self._messages.append({"role": "assistant", "content": answer_text(previous)})
        source, prompt = self._source, self._conversation.prompts[turn]
        self._messages.append(user_message(prompt if source.unique is None else source.unique.filled(prompt)))
        self._turn += 1
        request = PreparedRequest(turn, *self._encode(turn), source.encoder.response)
        source.cancellations.mark(request, self._number * len(self._conversation.prompts) + turn)
        return request

    def _encode(self, turn: int) -> tuple[bytes, bytes]:
        encoder, output_tokens = self._source.encoder, self._conversation.output_tokens[turn]
        if encoder.form.route is OpenAiRoute.CHAT:
            return encoder.encode(self._messages, output_tokens)
        return encoder.encode("\n".join(str(message["content"]) for message in self._messages), output_tokens)

    @property
    def needs_answers(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class ConversationSource(ScriptSource):
    """Gives each session one of the conversations, in turn; with `unique`, marked prompts never repeat."""

    conversations: Sequence[Conversation]
    encoder: OpenAiEncoder
    cancellations: CancellationPattern
    unique: UniqueWords | None = None

    def script(self, session: int) -> Script:
        return ConversationScript(self, self.conversations[session % len(self.conversations)], session)


def answer_text(answer: Answer) -> str:
    """Return the text of an answer of chat, completions or generate, streamed or whole; "" if it has none."""
    if answer.text or not answer.body:
        return answer.text
    try:
        document: Any = orjson.loads(answer.body)
        if "text_output" in document:
            return str(document["text_output"])
        choice = document["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
