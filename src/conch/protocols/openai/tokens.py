"""Requests and responses of vLLM's `/tokenize` and `/detokenize`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from conch.domain.generation import PromptTokens
from conch.domain.tensor import Buffer
from conch.protocols.openai.field_rules import DETOKENIZE, TOKENIZE
from conch.protocols.openai.fields import Fields, IgnoredField, read_object
from conch.protocols.openai.requests import ChatCall, read_chat

# Fields of a chat completion.
_CHAT = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeCall:
    """A text or a chat to tokenize. `model` is "" for the only model."""

    model: str
    prompt: str = ""
    chat: ChatCall | None = None
    add_special_tokens: bool = True
    token_strings: bool = False
    ignored: Sequence[IgnoredField] = ()


class DetokenizeCall(NamedTuple):
    """Token ids to return as text. `model` is "" for the only model."""

    model: str
    token_ids: Sequence[int]
    ignored: Sequence[IgnoredField]


def read_tokenize(body: Buffer) -> TokenizeCall:
    """Decode the body of `/tokenize`. Raises InvalidField."""
    document = read_object(body)
    fields = Fields(document, TOKENIZE)
    model, strings = fields.text("model") or "", fields.boolean("return_token_strs")
    chat = None
    if "messages" in document:
        given = {name: fields.take(name) for name in _CHAT if name in document}
        chat = read_chat(orjson.dumps({**given, "model": model}))
    prompt = fields.text("prompt")
    if chat is None and prompt is None:
        raise fields.wrong("prompt", "you must provide a 'prompt' or 'messages' parameter")
    special = fields.boolean("add_special_tokens", chat is None)
    return TokenizeCall(
        model=model,
        prompt=prompt or "",
        chat=chat,
        add_special_tokens=special,
        token_strings=strings,
        ignored=(*fields.done(), *(() if chat is None else chat.ignored)),
    )


def read_detokenize(body: Buffer) -> DetokenizeCall:
    """Decode the body of `/detokenize`. Raises InvalidField."""
    fields = Fields(read_object(body), DETOKENIZE)
    model, tokens = fields.text("model") or "", fields.token_ids("tokens", fields.list("tokens"))
    return DetokenizeCall(model, tokens, fields.done())


def tokenized(prompt: PromptTokens, context_length: int, *, strings: bool) -> bytes:
    """Encode the response of `/tokenize`."""
    return orjson.dumps(
        {
            "count": len(prompt.token_ids),
            "max_model_len": context_length,
            "tokens": [*prompt.token_ids],
            "token_strs": [*prompt.pieces] if strings else None,
        }
    )


def detokenized(prompt: PromptTokens) -> bytes:
    """Encode the response of `/detokenize`."""
    return orjson.dumps({"prompt": prompt.text})
