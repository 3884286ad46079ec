"""Render the messages of a chat to a prompt with the chat template of a model's tokenizer.

Templates are Jinja, with the additions of Hugging Face's `apply_chat_template`. They are programs that come with a
model. Jinja's sandbox does not bound their time and memory, so the server renders them in a process that it can kill
(`domain/llm/chat_prompt.py`).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson
from jinja2 import TemplateError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conch.base.errors import ConfigError, InvalidRequest


class ChatTemplate:
    """One model's template. `special_tokens` are bos_token, eos_token and so on."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile the template. Raises ConfigError if it is invalid."""
        try:
            environment = _environment()
            self._template = environment.from_string(source)
            self.renders_calls = "tool_calls" in source  # of earlier turns
            self.renders_tools = "tools" in find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise ConfigError(f"invalid chat template: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt; with `continue_final_message` it ends with the last message's text.

        Raises InvalidRequest if the template fails, with its message.
        """
        prompt = self._rendered(messages, tools, add_generation_prompt, arguments)
        return _cut_after(prompt, messages[-1].get("content") or "") if continue_final_message else prompt

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        arguments: Mapping[str, Any] | None,
    ) -> str:
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


def _cut_after(prompt: str, content: str) -> str:
    """Return the prompt up to the end of the last message, as Hugging Face's `apply_chat_template` does."""
    text = content.strip()
    start = prompt.rfind(text)
    if not text or start < 0:
        raise InvalidRequest(
            "'continue_final_message' needs a last message whose text the model's chat template does not change"
        )
    kept = content.lstrip()
    return prompt[: start + len(kept if prompt.startswith(kept, start) else text)]


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
