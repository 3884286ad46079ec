"""Render the prompt of a chat in a worker process, and describe tools if the model's template does not.

Templates are programs, so they run in a process that the server can kill. Arguments and results are JSON values.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from conch.base.errors import InvalidRequest
from conch.domain.llm.chat import ChatTemplate
from conch.domain.llm.tool_calls import call_format
from conch.domain.llm.tool_prompt import with_system_in_user, with_tools, without_calls

MAX_TEMPLATE_CHARACTERS = 2**20
MAX_PROMPT_BYTES = 12 * 2**20
HERMES = "hermes"


def render(described: Mapping[str, Any], messages: bytes) -> tuple[dict[str, Any], bytes]:
    """Render messages in JSON to a prompt in UTF-8.

    `described` has `template`, `special_tokens`, `tools`, `tool_call_parser`, `add_generation_prompt`,
    `continue_final_message`, `arguments` and `echo`. The result has `describes_tools`, whether the prompt describes the
    tools because the template does not, and `echoed`, the text of the echo. Raises ConfigError, InvalidRequest.
    """
    source: str = described["template"]
    template = _template(source, tuple(sorted(described["special_tokens"].items())))
    tools: list[dict[str, Any]] = described["tools"]
    form = described["tool_call_parser"] or call_format(source)
    describes_tools = bool(tools) and form in ("", HERMES) and not template.renders_tools
    prompt = _prompt(template, described, orjson.loads(messages), tools, describes_tools).encode("utf-8", "replace")
    if len(prompt) > MAX_PROMPT_BYTES:
        raise InvalidRequest(
            f"the model's chat template renders these messages to a prompt of {len(prompt)} bytes, "
            f"at most {MAX_PROMPT_BYTES} are possible"
        )
    return {"describes_tools": describes_tools, "echoed": _echoed(described, messages)}, prompt


def _prompt(
    template: ChatTemplate,
    described: Mapping[str, Any],
    conversation: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    describes_tools: bool,
) -> str:
    def rendered(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        return template.render(
            messages,
            tools=tools,
            add_generation_prompt=described["add_generation_prompt"],
            continue_final_message=described["continue_final_message"],
            arguments=described["arguments"],
        )

    messages = conversation if template.renders_calls else without_calls(conversation)
    if not describes_tools:
        return rendered(messages, tools)
    messages = with_tools(messages, tools)
    try:
        return rendered(messages, ())
    except InvalidRequest:  # some templates refuse a system message
        return rendered(with_system_in_user(messages), ())


def _echoed(described: Mapping[str, Any], messages: bytes) -> str:
    """Return the text of the last message for an echo, if it is the assistant's."""
    if not described["echo"]:
        return ""
    last = orjson.loads(messages)[-1]
    return str(last["content"] or "") if last["role"] == "assistant" else ""


@lru_cache(maxsize=64)
def _template(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(source, dict(special_tokens))
