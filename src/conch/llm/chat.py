"""From a conversation to a prompt: a model's chat template, as its tokenizer brings it.

Templates are Jinja, with the additions that Hugging Face's `apply_chat_template` has. They are programs that come with
a model, and run in Jinja's sandbox.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conch.errors import ConfigError, InvalidRequest


class ChatTemplate:
    """One model's template. `special_tokens` are bos_token, eos_token and so on."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile the template. Raises ConfigError if it is none."""
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ConfigError(f"the chat template cannot be read: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt. Raises InvalidRequest with what the template has to say against the conversation."""
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    **(arguments or {}),
                    "messages": messages,
                    "tools": tools or None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except InvalidRequest:
            raise
        except Exception as error:  # a template is a program, and may fail in any way
            raise InvalidRequest(f"the model's chat template cannot render these messages: {error}") from error


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    return environment


def _raise_exception(message: str) -> str:
    raise InvalidRequest(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:  # noqa: ARG001
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None).decode()
