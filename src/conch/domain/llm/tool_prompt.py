"""Describe tools in the messages, in the hermes format, for a chat template without support for tools.

The system message lists the functions and shows a call; earlier calls and their results become the text of ordinary
messages. Source: the system prompt of Hermes-2-Pro, which is also that of Qwen's templates.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

Message = Mapping[str, Any]

_INTRODUCTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def with_tools(messages: Sequence[Message], tools: Sequence[Message]) -> list[Message]:
    """Return the messages with a system message that describes the tools."""
    listed = "\n".join(orjson.dumps(tool).decode() for tool in tools)
    introduction = _INTRODUCTION.format(tools=listed)
    first = messages[0]
    if first["role"] in ("system", "developer"):
        return [{**first, "content": f"{first['content'] or ''}\n\n{introduction}"}, *messages[1:]]
    return [{"role": "system", "content": introduction}, *messages]


def without_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with calls as text, and with the results of one turn as one message of the user."""
    plain: list[Message] = []
    results: list[str] = []
    for message in messages:
        if message["role"] in ("tool", "function"):
            results.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if results:
            plain.append({"role": "user", "content": "\n".join(results)})
            results = []
        calls = message.get("tool_calls")
        if calls:
            texts = [message["content"]] if message["content"] else []
            content = "\n".join([*texts, *(_call(call["function"]) for call in calls)])
            message = {**message, "content": content}
            del message["tool_calls"]
        plain.append(message)
    if results:
        plain.append({"role": "user", "content": "\n".join(results)})
    return plain


def with_system_in_user(messages: Sequence[Message]) -> list[Message]:
    """Return the messages for a template without system messages: the text is put before the first user message."""
    if len(messages) > 1 and messages[0]["role"] in ("system", "developer") and messages[1]["role"] == "user":
        system, user, *rest = messages
        return [{**user, "content": f"{system['content']}\n\n{user['content']}"}, *rest]
    return [{**messages[0], "role": "user"}, *messages[1:]] if messages[0]["role"] == "system" else [*messages]


def _call(function: Message) -> str:
    document = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{orjson.dumps(document).decode()}\n</tool_call>"
