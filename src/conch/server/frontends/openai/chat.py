"""What is special about chats: prompts are rendered from messages, answers parsed for reasoning and tool calls.

Prompts are rendered in worker processes, which can be killed: a chat template is a program.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import orjson

from conch.base.errors import ConchError, ConfigError, InvalidRequest
from conch.domain.generation import StructuredOutput
from conch.domain.llm.images import EncodedImage
from conch.domain.llm.output import OutputParser, PlainOutput, ReasoningOutput, has_reasoning
from conch.domain.llm.tool_calls import (
    ClientCalls,
    NamedCall,
    arguments_schema,
    call_format,
    call_parser,
    required_calls,
    required_schema,
)
from conch.protocols.openai.fields import InvalidField
from conch.protocols.openai.requests import ChatCall
from conch.server.core.generative_model import GenerativeModel
from conch.server.frontends.offload.pool import Job, OffloadPool, Outcome

# Limits for rendering one conversation.
MAX_TEMPLATE_S = 5.0
MAX_TEMPLATE_MEMORY_BYTES = 2**30
MAX_TEMPLATE_CHARACTERS = 2**20
_NO_PARSER = (
    "'tools' with the 'tool_choice' auto need a format of tool calls that the server can parse, and the model's chat "
    "template has another one: set the parameter tool_call_parser in the model's configuration to hermes, llama3 or "
    "mistral, or send a 'tool_choice' of none, required or a tool's name"
)


class ChatPrompt(NamedTuple):
    """A prompt. `describes_tools`: it describes the tools, since the template does not."""

    text: str
    images: Sequence[EncodedImage]
    describes_tools: bool
    echoed: str  # what the answer begins with


class ChatPrompts:
    """Renders prompts. Idle processes are kept, because starting one takes long."""

    def __init__(self) -> None:
        self._pool = OffloadPool(
            "chat template",
            workers=2,
            limit_s=MAX_TEMPLATE_S,
            idle_s=None,
            memory_bytes=MAX_TEMPLATE_MEMORY_BYTES,
            niceness=0,
            too_slow="the model's chat template takes too long to render these messages",
            refusal=InvalidRequest,
        )

    def warm(self) -> None:
        """Start a process before there is a prompt to render."""
        self._pool.warm()

    async def stop(self) -> None:
        """End all processes."""
        await self._pool.stop()

    def render(
        self, model: GenerativeModel, call: ChatCall, done: Callable[[ChatPrompt | ConchError], None], client: str
    ) -> Job:
        """Render the prompt of a chat and call `done`. Clients take turns.

        Raises InvalidRequest if the model has no template, Unavailable if too many prompts wait.
        """
        info = model.engine.info
        if not info.chat_template:
            raise InvalidRequest(f"The model `{call.model}` has no chat template; /v1/completions takes its prompts.")
        if len(info.chat_template) > MAX_TEMPLATE_CHARACTERS:
            raise ConfigError(
                f"the chat template has {len(info.chat_template)} characters; the maximum is {MAX_TEMPLATE_CHARACTERS}"
            )
        described = {
            "template": info.chat_template,
            "special_tokens": dict(info.special_tokens),
            "tools": [*call.tools] if call.tool_choice != "none" else [],
            "tool_call_parser": model.config.parameters.get("tool_call_parser", ""),
            "add_generation_prompt": call.add_generation_prompt,
            "continue_final_message": call.continue_final_message,
            "arguments": dict(call.template_arguments),
            "echo": call.echo,
            "image_placeholders": info.image_placeholders,
        }
        messages = orjson.dumps(call.messages) if isinstance(call.messages, list) else call.messages
        assert isinstance(messages, bytes | memoryview)

        def rendered(outcome: Outcome | ConchError) -> None:
            if isinstance(outcome, ConchError):
                done(outcome)
            else:
                meta, (text, *files) = outcome
                headers = zip(meta["images"], files, strict=True)
                images = [EncodedImage(kind, width, height, file) for (kind, width, height), file in headers]
                done(ChatPrompt(str(text, "utf-8"), images, meta["describes_tools"], meta["echoed"]))

        return self._pool.submit("render", described, [messages], rendered, client=client)


class OutputForm:
    """Makes the parsers of one call's choices.

    `form` is how the model calls tools, "" for what its template shows; `prompt` is the rendered one. If neither says
    it, tools with `auto` are refused. Calls are `whole` or come in pieces.
    """

    def __init__(self, template: str, form: str, call: ChatCall, prompt: str, *, whole: bool) -> None:
        self._call = call
        self._whole = whole
        self._thinks = has_reasoning(template)
        self._thinking = prompt.rstrip().endswith("<think>")
        self._form = ""
        if call.tools and call.tool_choice == "auto":
            self._form = form or call_format(template)
            if not self._form:
                raise InvalidField("tools", _NO_PARSER)

    def __call__(self) -> OutputParser:
        """Make the parser of one choice."""
        call, choice = self._call, self._call.tool_choice
        rest: OutputParser
        if not isinstance(choice, str):
            rest = NamedCall(choice["name"])
        elif choice == "required":
            rest = required_calls()
        else:
            rest = call_parser(self._form) if self._form else PlainOutput()
        if self._thinks:
            rest = ReasoningOutput(rest, thinking=self._thinking, shown=call.include_reasoning)
        if not call.tools or not (self._whole or call.custom_tools or not call.parallel_tool_calls):
            return rest
        return ClientCalls(rest, custom=call.custom_tools, parallel=call.parallel_tool_calls, whole=self._whole)

    def adjusted(self, call: ChatCall) -> ChatCall:
        """Return the call with what the parsers need: special tokens in the text, or a schema for tool calls."""
        choice = call.tool_choice
        if not isinstance(choice, str):
            tool = next(tool for tool in call.tools if tool["function"]["name"] == choice["name"])
            structured = StructuredOutput("json", json.dumps(arguments_schema(tool)))
        elif choice == "required":
            structured = StructuredOutput("json", required_schema(call.tools, parallel=call.parallel_tool_calls))
        elif self._form:
            return replace(call, params=replace(call.params, skip_special_tokens=False))
        else:
            return call
        return replace(call, params=replace(call.params, structured=structured))
