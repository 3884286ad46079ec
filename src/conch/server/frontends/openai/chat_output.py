"""Selects the parser of a chat's answer: reasoning, tool calls, or plain text."""

import json
from dataclasses import replace

from conch.domain.generation import StructuredOutput
from conch.domain.llm.output import OutputParser, PlainOutput
from conch.domain.llm.reasoning import ReasoningOutput, has_reasoning
from conch.domain.llm.tool_calls import (
    NamedCall,
    RequiredCalls,
    arguments_schema,
    call_format,
    call_parser,
    required_schema,
)
from conch.protocols.openai.requests import ChatCall


class OutputForm:
    """Makes the parsers of one call's choices.

    `form` is how the model calls tools, "" for what its template shows; `prompt` is the rendered one. If neither says
    it, an answer with `auto` is text.
    """

    def __init__(self, template: str, form: str, call: ChatCall, prompt: str) -> None:
        self._call = call
        self._thinks = has_reasoning(template)
        self._thinking = prompt.rstrip().endswith("<think>")
        self._form = ""
        if call.tools and call.tool_choice == "auto":
            self._form = form or call_format(template)

    def __call__(self) -> OutputParser:
        """Make the parser of one choice."""
        choice = self._call.tool_choice
        rest: OutputParser
        if not isinstance(choice, str):
            rest = NamedCall(choice["name"])
        elif choice == "required":
            rest = RequiredCalls()
        else:
            rest = call_parser(self._form) if self._form else PlainOutput()
        if not self._thinks:
            return rest
        return ReasoningOutput(rest, thinking=self._thinking, shown=self._call.include_reasoning)

    def adjusted(self, call: ChatCall) -> ChatCall:
        """Return the call with what the parsers need: special tokens in the text, or a schema for tool calls."""
        choice = call.tool_choice
        if not isinstance(choice, str):
            tool = next(tool for tool in call.tools if tool["function"]["name"] == choice["name"])
            structured = StructuredOutput("json", json.dumps(arguments_schema(tool)))
        elif choice == "required":
            structured = StructuredOutput("json", required_schema(call.tools))
        elif self._form:
            return replace(call, params=replace(call.params, skip_special_tokens=False))
        else:
            return call
        return replace(call, params=replace(call.params, structured=structured))
