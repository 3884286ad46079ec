"""Render the prompt of a chat by the model's template, and describe tools if the template does not.

Templates are programs, so they run in a process that the server can kill. Arguments and results are JSON values.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any

import orjson
from jinja2 import TemplateError, pass_context
from jinja2.meta import TrackingCodeGenerator
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conch.base.errors import ConfigError, InvalidRequest
from conch.domain.llm.images import EncodedImage, join_contents, take_images, text_of
from conch.domain.llm.tool_calls import HERMES, call_format

MAX_PROMPT_BYTES = 12 * 2**20
Message = Mapping[str, Any]
_MAX_ERROR_CHARACTERS = 16_384
_PROBE = "a text to find again"
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


class ChatTemplate:
    """One model's template. `special_tokens` are bos_token, eos_token and so on."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile the template. Raises ConfigError if it is invalid."""
        try:
            environment = _environment()
            self._template = environment.from_string(source)
            self.renders_calls = "tool_calls" in source  # of earlier turns
            self.knows_developer = "developer" in source  # the role; other templates refuse or misplace it
            generator = TrackingCodeGenerator(environment)
            generator.optimizer = None
            generator.visit(environment.parse(source))
            self.renders_tools = "tools" in generator.undeclared_identifiers
        except TemplateError as error:
            raise ConfigError(f"invalid chat template: {error}") from error
        except RecursionError:
            raise ConfigError("the template is nested too deeply") from None
        self._special_tokens = dict(special_tokens)

    @cached_property
    def takes_parts(self) -> bool:
        """Whether it renders content that is an array of parts. Others print the array, or fail."""
        return self._shows([{"type": "text", "text": _PROBE}])

    @cached_property
    def takes_texts(self) -> bool:
        """Whether it renders content that is a text. Templates for images may leave it out."""
        return self._shows(_PROBE)

    def _shows(self, content: Any) -> bool:
        try:
            prompt = self._rendered([{"role": "user", "content": content}], (), True, None)
        except InvalidRequest:
            return False
        return _PROBE in prompt and not any(quote + _PROBE in prompt for quote in "'\"")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        arguments: Mapping[str, Any] | None = None,
        placeholders: Sequence[str] = (),
    ) -> str:
        """Return the prompt; with `continue_final_message` it ends with the last message's text.

        `placeholders` are the model's for images, if it takes any. Raises InvalidRequest if the template fails, with
        its message.
        """
        shown = self._with_images(messages, placeholders) if placeholders else messages
        prompt = self._rendered(shown, tools, add_generation_prompt, arguments)
        return _cut_after(prompt, text_of(messages[-1].get("content"))) if continue_final_message else prompt

    def _with_images(self, messages: Sequence[Message], placeholders: Sequence[str]) -> list[Message]:
        """Return messages whose content has the form for this template: parts, or texts with placeholders."""
        unused = iter(placeholders)
        shown: list[Message] = []
        for message in messages:
            content = message.get("content")
            if isinstance(content, list) and not self.takes_parts:
                # As vLLM does: before the texts, each on a line.
                marks = [next(unused) for part in content if part["type"] != "text"]
                content = "\n".join([*filter(None, marks), text_of(content)])
            elif isinstance(content, str) and self.takes_parts and not self.takes_texts:
                content = [{"type": "text", "text": content}]
            shown.append({**message, "content": content})
        return shown

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
    # Without constants that are computed when a template is compiled: `'a' * 10**9` would be made without a limit.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"],
        optimized=False,
        finalize=_unchanged,
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    return environment


@pass_context
def _unchanged(_context: Context, value: Any) -> Any:
    """Return a value for output. Jinja folds no constants in front of a function that takes the context."""
    return value


def _raise_exception(message: str) -> str:
    raise InvalidRequest(str(message)[:_MAX_ERROR_CHARACTERS])


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:  # noqa: ARG001
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else None).decode()


def render(described: Mapping[str, Any], messages: bytes) -> tuple[dict[str, Any], bytes, list[EncodedImage]]:
    """Render messages in JSON to a prompt in UTF-8, and return it with their images.

    `described` has `template`, `special_tokens`, `tools`, `tool_call_parser`, `add_generation_prompt`,
    `continue_final_message`, `arguments`, `echo` and `image_placeholders`. The result has `describes_tools`, whether
    the prompt describes the tools because the template does not, and `echoed`, the text of the echo. Raises
    ConfigError, InvalidRequest.
    """
    source: str = described["template"]
    template = _template(source, tuple(sorted(described["special_tokens"].items())))
    tools: list[dict[str, Any]] = described["tools"]
    form = described["tool_call_parser"] or call_format(source)
    describes_tools = bool(tools) and form in ("", HERMES) and not template.renders_tools
    conversation, images = take_images(orjson.loads(messages), len(described["image_placeholders"]))
    prompt = _prompt(template, described, conversation, tools, describes_tools).encode("utf-8", "replace")
    if len(prompt) > MAX_PROMPT_BYTES:
        raise InvalidRequest(
            f"the model's chat template renders these messages to a prompt of {len(prompt)} bytes, "
            f"at most {MAX_PROMPT_BYTES} are possible"
        )
    return {"describes_tools": describes_tools, "echoed": _echoed(described, conversation)}, prompt, images


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
            placeholders=described["image_placeholders"],
        )

    if not template.knows_developer:
        conversation = [
            {**message, "role": "system"} if message["role"] == "developer" else message for message in conversation
        ]
    messages = conversation if template.renders_calls else without_calls(conversation)
    if not describes_tools:
        return rendered(messages, tools)
    messages = with_tools(messages, tools)
    try:
        return rendered(messages, ())
    except InvalidRequest:  # some templates refuse a system message
        return rendered(with_system_in_user(messages), ())


def _echoed(described: Mapping[str, Any], messages: Sequence[Message]) -> str:
    """Return the text of the last message for an echo, if it is the assistant's."""
    if not described["echo"]:
        return ""
    last = messages[-1]
    return str(last["content"] or "") if last["role"] == "assistant" else ""


@lru_cache(maxsize=64)
def _template(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(source, dict(special_tokens))


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
        return [{**user, "content": join_contents([system["content"], user["content"]], "\n\n")}, *rest]
    return [{**messages[0], "role": "user"}, *messages[1:]] if messages[0]["role"] == "system" else [*messages]


def _call(function: Message) -> str:
    document = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{orjson.dumps(document).decode()}\n</tool_call>"
