"""The prompt of a chat: the model's own template, with tools where the template has none for itself."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from conch.core.generative import GenerativeModel
from conch.errors import InvalidRequest
from conch.llm.chat import ChatTemplate
from conch.llm.tool_calls import call_format
from conch.llm.tool_prompt import with_system_in_user, with_tools, without_calls
from conch.protocol.openai_requests import ChatCall

HERMES = "hermes"


def render_prompt(model: GenerativeModel, call: ChatCall) -> str:
    """Return the prompt. Raises InvalidRequest if the model has no template, or its template refuses the messages."""
    info = model.engine.info
    if not info.chat_template:
        raise InvalidRequest(f"The model `{call.model}` has no chat template; /v1/completions takes its prompts.")
    template = _template(info.chat_template, tuple(sorted(info.special_tokens.items())))
    tools = call.tools if call.tool_choice != "none" else ()
    messages = call.messages if template.takes_calls else without_calls(call.messages)
    if not describes_tools(model, call):
        return _rendered(template, call, messages, tools)
    messages = with_tools(messages, tools)
    try:
        return _rendered(template, call, messages, ())
    except InvalidRequest:  # some templates refuse a system message
        return _rendered(template, call, with_system_in_user(messages), ())


def describes_tools(model: GenerativeModel, call: ChatCall) -> bool:
    """Whether the conversation describes the tools, since the template does not."""
    if not call.tools or call.tool_choice == "none":
        return False
    template = model.engine.info.chat_template
    form = model.config.parameters.get("tool_call_parser", "") or call_format(template)
    return form in ("", HERMES) and not _template(template, ()).takes_tools


def _rendered(
    template: ChatTemplate, call: ChatCall, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> str:
    return template.render(
        messages,
        tools=tools,
        add_generation_prompt=call.add_generation_prompt,
        continue_final_message=call.continue_final_message,
        arguments=call.template_arguments,
    )


@lru_cache(maxsize=64)
def _template(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(source, dict(special_tokens))
