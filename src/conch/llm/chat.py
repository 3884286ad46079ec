"""From a conversation to a prompt: a model's chat template, as its tokenizer brings it.

Templates are Jinja, with the additions that Hugging Face's `apply_chat_template` has. They are programs that come with
a model, and run in Jinja's sandbox, which bounds neither their time nor their memory: the server renders them in a
process that it can end (`llm/chat_prompt.py`).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson
from jinja2 import TemplateError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conch.errors import ConfigError, InvalidRequest


class ChatTemplate:
    """One model's template. `special_tokens` are bos_token, eos_token and so on."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile the template. Raises ConfigError if it is none."""
        try:
            environment = _environment()
            self._template = environment.from_string(source)
            # Whether the template renders the tools of a call.
            self.takes_calls = "tool_calls" in source  # and those of earlier turns
            self.takes_tools = "tools" in find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise ConfigError(f"the chat template cannot be read: {error}") from error
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

        Raises InvalidRequest with what the template has to say against the conversation.
        """
        prompt = self._rendered(messages, tools, add_generation_prompt, arguments)
        return _cut_behind(prompt, messages[-1].get("content") or "") if continue_final_message else prompt

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


def _cut_behind(prompt: str, content: str) -> str:
    """Return the prompt up to the end of the last message, as Hugging Face's `apply_chat_template` cuts it."""
    text = content.strip()
    start = prompt.rfind(text)
    if not text or start < 0:
        raise InvalidRequest(
            "'continue_final_message' needs a last message whose text the model's chat template leaves as it is"
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
