"""The prompt of a chat: the model's own template, with tools where the template has none for itself.

Runs in a process that can be ended, since a template is a program. What it takes and gives are JSON values.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from conch.errors import InvalidRequest
from conch.llm.chat import ChatTemplate
from conch.llm.tool_calls import call_format
from conch.llm.tool_prompt import with_system_in_user, with_tools, without_calls

MAX_TEMPLATE_CHARACTERS = 2**20
MAX_PROMPT_BYTES = 12 * 2**20
HERMES = "hermes"


def render(described: Mapping[str, Any], messages: bytes) -> tuple[dict[str, Any], bytes]:
    """Render messages in JSON to a prompt in UTF-8.

    `described` has `template`, `special_tokens`, `tools`, `tool_call_parser`, `add_generation_prompt`,
    `continue_final_message`, `arguments` and `echo`. The answer says whether the prompt `describes_tools`, for
    the template does not, and the text that is `echoed`. Raises ConfigError, InvalidRequest.
    """
    source: str = described["template"]
    template = _template(source, tuple(sorted(described["special_tokens"].items())))
    tools: list[dict[str, Any]] = described["tools"]
    form = described["tool_call_parser"] or call_format(source)
    describes_tools = bool(tools) and form in ("", HERMES) and not template.takes_tools
    prompt = _prompt(template, described, orjson.loads(messages), tools, describes_tools).encode("utf-8", "replace")
    if len(prompt) > MAX_PROMPT_BYTES:
        raise InvalidRequest(
            f"the model's chat template makes a prompt of {len(prompt)} bytes of these messages, "
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

    messages = conversation if template.takes_calls else without_calls(conversation)
    if not describes_tools:
        return rendered(messages, tools)
    messages = with_tools(messages, tools)
    try:
        return rendered(messages, ())
    except InvalidRequest:  # some templates refuse a system message
        return rendered(with_system_in_user(messages), ())


def _echoed(described: Mapping[str, Any], messages: bytes) -> str:
    """Return what an answer begins with: the assistant's message that it belongs to, if that is to be echoed."""
    if not described["echo"]:
        return ""
    last = orjson.loads(messages)[-1]
    return str(last["content"] or "") if last["role"] == "assistant" else ""


@lru_cache(maxsize=64)
def _template(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(source, dict(special_tokens))
