"""Decode requests for completions and chat completions of the OpenAI API.

`field_rules` lists the fields. Sampling parameters that the API does not have are vLLM's.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import orjson

from conch.domain.generation import MAX_COPIED_PARAMS, MAX_LOGPROBS, SamplingParams, StructuredOutput
from conch.domain.llm.images import content_of, image_part
from conch.domain.llm.tool_calls import CUSTOM_INPUT, arguments_object
from conch.domain.tensor import Buffer
from conch.protocols.openai.field_rules import CHAT, COMPLETION
from conch.protocols.openai.fields import Fields, IgnoredField, InvalidField, read_object
from conch.protocols.openai.nested_fields import NestedRules

MAX_REQUEST_ID_CHARACTERS = 256


def read_extensions(fields: Fields) -> dict[str, Any]:
    """Check the extensions of a generation; return arguments of a `GenerationCall`. Raises InvalidField."""
    request_id = fields.text("request_id") or ""
    if len(request_id) > MAX_REQUEST_ID_CHARACTERS:
        text = f"'request_id' may have {MAX_REQUEST_ID_CHARACTERS} characters at most, got {len(request_id)}"
        raise fields.wrong("request_id", text)
    return {
        "request_id": request_id,
        "token_ids": fields.boolean("return_token_ids"),
        "tokens_as_ids": fields.boolean("return_tokens_as_token_ids"),
    }


_Chat = TypeVar("_Chat", bound="ChatCall")
# The API's default of max_tokens.
_DEFAULT_COMPLETION_TOKENS = 16
MAX_PROMPTS = 256
_MESSAGES = NestedRules("messages[].", CHAT)
_TOOLS = NestedRules("tools[].", CHAT)
_CHOICE = NestedRules("tool_choice.", CHAT)
# Characters or token ids of prompts in a response that repeats each of them for `n` choices.
MAX_REPEATED_PROMPT = 2**22
_TOKEN_ID = re.compile("[0-9]{1,10}")
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_INTEGERS = ("n", "min_tokens", "top_k", "seed", "truncate_prompt_tokens")
_BOOLEANS = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens")
_TEXTS = ("truncation_side", "cache_salt")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationCall:
    """Base of the requests for completions."""

    model: str
    params: SamplingParams
    stream: bool
    include_usage: bool
    continuous_usage: bool = False  # the usage so far with each chunk
    priority: int = 0
    request_id: str = ""  # part of the response's id
    token_ids: bool = False  # return the token ids of prompt and completion
    tokens_as_ids: bool = False  # show the ids of tokens with log probabilities
    prompt_only: bool = False  # return the prompt without generating
    ignored: Sequence[IgnoredField] = ()

    @property
    def return_prompt(self) -> Literal["", "count", "ids", "text"]:
        """The parts of the tokenized prompt that the response needs."""
        return _return_prompt(self)

    @property
    def repeats_tokens(self) -> bool:
        """Whether the response has the prompt's tokens, or their log probabilities, for each choice."""
        return self.token_ids or self.params.prompt_logprobs is not None


def _return_prompt(call: GenerationCall) -> Literal["", "count", "ids"]:
    cuts = call.stream and call.params.truncate_prompt_tokens is not None  # for a header before the first chunk
    if call.repeats_tokens:
        return "ids"
    return "count" if call.continuous_usage or cuts else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCall(GenerationCall):
    """`POST /v1/completions`: each prompt is a text or token ids."""

    prompts: Sequence[str | Sequence[int]]
    echo: bool = False
    add_special_tokens: bool = True

    @property
    def return_prompt(self) -> Literal["", "count", "ids", "text"]:
        """Also the text for an echo: the prompt may be token ids, or truncated."""
        return "text" if self.echo else _return_prompt(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall(GenerationCall):
    """`POST /v1/chat/completions`. `tool_choice` names a function, or is "auto", "none" or "required".

    With `echo` the response begins with the last message, if that is the assistant's; with `continue_final_message` the
    model continues that message.
    """

    messages: Sequence[Mapping[str, Any]] | Buffer  # as JSON if a worker has split them off
    tools: Sequence[Mapping[str, Any]] = ()  # all of them functions
    custom_tools: frozenset[str] = frozenset()  # names of those that take a text
    tool_choice: str | Mapping[str, Any] = "none"
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    echo: bool = False
    include_reasoning: bool = True
    template_arguments: Mapping[str, Any] = field(default_factory=dict)


def read_completion(body: Buffer, prompts: Sequence[str | Sequence[int]] | None = None) -> CompletionCall:
    """Decode the body of a completion. A worker may have split the `prompts` from it. Raises InvalidField."""
    fields = Fields(read_object(body, checked=prompts is not None), COMPLETION)
    model = fields.required_text("model")
    prompts = prompts or fields.prompts("prompt", MAX_PROMPTS)
    max_tokens = fields.integer("max_tokens")
    echo, logprobs = fields.boolean("echo"), _logprobs_of_completion(fields)
    prompt_only = echo and max_tokens == 0
    if prompt_only:
        max_tokens = 1
    params = _params(fields, _DEFAULT_COMPLETION_TOKENS if max_tokens is None else max_tokens, logprobs)
    if echo and params.prompt_logprobs is None and logprobs is not None:
        params = replace(params, prompt_logprobs=logprobs)
    best_of = fields.integer("best_of")
    if best_of is not None and best_of != params.n:
        raise fields.wrong("best_of", f"'best_of' is not supported beyond n ({params.n}), got {best_of}")
    call = CompletionCall(
        model=model,
        prompts=prompts,
        params=params,
        echo=echo,
        prompt_only=prompt_only,
        add_special_tokens=fields.boolean("add_special_tokens", True),
        **_transport(fields),
        ignored=fields.done(),
    )
    _check_copies(call)
    return call


def _check_copies(call: CompletionCall) -> None:
    """Bound what is copied for each prompt, and what the response repeats. Raises InvalidField."""
    prompts, size = len(call.prompts), call.params.size
    if size * prompts > MAX_COPIED_PARAMS:
        text = (
            f"parameters of about {size} bytes for each of {prompts} prompts exceed the maximum of {MAX_COPIED_PARAMS}"
        )
        raise InvalidField("prompt", text)
    if call.echo or call.repeats_tokens:
        check_repetition(call.params.n, sum(map(len, call.prompts)))


def check_repetition(n: int, size: int) -> None:
    """Bound a response that repeats prompts of `size` characters or tokens for `n` choices. Raises InvalidField."""
    if n > 1 and n * size > MAX_REPEATED_PROMPT:
        text = f"'n' is {n}: the response would repeat {size} characters or tokens of prompts as often; "
        raise InvalidField("n", f"{text}the maximum is {MAX_REPEATED_PROMPT} in all")


def read_chat(body: Buffer, messages: Buffer | None = None, ignored: Sequence[str] = ()) -> ChatCall:
    """Decode the body of a chat completion.

    A worker may have split the `messages` from it, and found that fields of them are `ignored`. Raises InvalidField.
    """
    return chat_call(read_object(body, checked=messages is not None), messages, ignored)


def chat_call(
    document: Mapping[str, Any],
    messages: Buffer | None = None,
    ignored: Sequence[str] = (),
    make: Callable[..., _Chat] = ChatCall,  # type: ignore[assignment]
    *,
    fits: bool = False,
) -> _Chat:
    """Read the body of a chat completion that is decoded already, as `read_chat`. Raises InvalidField.

    `make` is called with the fields of a `ChatCall`. `fits`: the number of tokens is an upper bound, which may exceed
    the context.
    """
    fields = Fields(document, CHAT)
    model = fields.required_text("model")
    if messages is None:
        conversation: Sequence[Mapping[str, Any]] | Buffer = read_messages(fields)
        ignored = undecided_in_messages(document)
    else:
        conversation = messages
    fields.ignore(*ignored)
    max_tokens = fields.integer("max_completion_tokens")
    deprecated_max_tokens = fields.integer("max_tokens")
    max_tokens = deprecated_max_tokens if max_tokens is None else max_tokens
    params = _params(fields, max_tokens, _logprobs_of_chat(fields), fits=fits and max_tokens is not None)
    tools, custom = _tools(fields)
    choice, tools = _tool_choice(fields, tools)
    fields.ignore(*_TOOLS.undecided(document.get("tools")), *_CHOICE.undecided(document.get("tool_choice")))
    if choice == "auto" and any(tool["function"].get("strict") for tool in tools):
        fields.ignore("tools[].function.strict")
    continues, generates = fields.boolean("continue_final_message"), fields.take("add_generation_prompt")
    if continues and generates:
        text = "'continue_final_message' and 'add_generation_prompt' cannot both be true"
        raise fields.wrong("continue_final_message", text)
    documents = fields.list("documents")
    arguments = dict(fields.object("chat_template_kwargs") or {})
    if documents is not None:
        arguments["documents"] = documents
    effort = fields.text("reasoning_effort")
    if effort is not None:
        arguments.setdefault("reasoning_effort", effort)
    return make(
        model=model,
        messages=conversation,
        params=params,
        tools=tools,
        custom_tools=custom,
        tool_choice=choice,
        parallel_tool_calls=fields.boolean("parallel_tool_calls", True),
        add_generation_prompt=fields.boolean("add_generation_prompt", True) and not continues,
        continue_final_message=continues,
        add_special_tokens=fields.boolean("add_special_tokens"),
        echo=fields.boolean("echo"),
        include_reasoning=fields.boolean("include_reasoning", True),
        template_arguments=arguments,
        **_transport(fields),
        ignored=fields.done(),
    )


def _transport(fields: Fields) -> dict[str, Any]:
    stream = fields.boolean("stream")
    options = fields.inner("stream_options")
    include_usage = continuous = False
    if options is not None:
        include_usage = options.boolean("include_usage")
        continuous = options.boolean("continuous_usage_stats")
        if not stream and (include_usage or continuous):
            raise fields.wrong("stream_options", "'stream_options' is allowed only together with 'stream'")
    return {
        "stream": stream,
        "include_usage": include_usage,
        "continuous_usage": continuous,
        "priority": fields.integer("priority") or 0,
        **read_extensions(fields),
    }


def _params(fields: Fields, max_tokens: int | None, logprobs: int | None, *, fits: bool = False) -> SamplingParams:
    arguments: dict[str, Any] = {"max_tokens": max_tokens, "logprobs": logprobs, "stop": fields.texts("stop")}
    if fits:
        arguments["fit_max_tokens"] = True
    for name in fields.given(_FLOATS):
        arguments[name] = fields.number(name)
    for name in fields.given(_INTEGERS):
        arguments[name] = fields.integer(name)
    for name in fields.given(_BOOLEANS):
        arguments[name] = fields.boolean(name)
    for name in fields.given(_TEXTS):
        arguments[name] = fields.text(name)
    for name in fields.given(("stop_token_ids", "allowed_token_ids")):
        arguments[name] = tuple(fields.token_ids(name, fields.list(name) or []))
    arguments["bad_words"] = fields.texts("bad_words")
    prompt_logprobs = fields.integer("prompt_logprobs")
    if prompt_logprobs is not None:
        if fields.take("stream"):
            raise fields.wrong("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.")
        arguments["prompt_logprobs"] = prompt_logprobs
    arguments["logit_bias"] = _logit_bias(fields)
    arguments["structured"] = _structured(fields)
    if arguments.get("top_k") == -1:  # all, as 0
        arguments["top_k"] = 0
    params = SamplingParams(**arguments)
    params.check()  # before the template is rendered
    return params


def _logit_bias(fields: Fields) -> dict[int, float]:
    biases: dict[int, float] = {}
    for token, bias in (fields.object("logit_bias") or {}).items():
        if not _TOKEN_ID.fullmatch(token) or isinstance(bias, bool) or not isinstance(bias, int | float):
            raise fields.wrong("logit_bias", f"'logit_bias' must map token ids to numbers, got '{token}'")
        if not -100 <= bias <= 100:
            raise fields.wrong("logit_bias", f"'logit_bias' of token {token} must be between -100 and 100, got {bias}")
        biases[int(token)] = float(bias)
    return biases


def _logprobs_of_chat(fields: Fields) -> int | None:
    enabled, top = fields.boolean("logprobs"), fields.integer("top_logprobs")
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise fields.wrong("top_logprobs", f"'top_logprobs' must be between 0 and {MAX_LOGPROBS}, got {top}")
    if top and not enabled:
        raise fields.wrong("top_logprobs", "'top_logprobs' needs 'logprobs': true")
    return (top or 0) if enabled else None


def _logprobs_of_completion(fields: Fields) -> int | None:
    top = fields.integer("logprobs")
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise fields.wrong("logprobs", f"'logprobs' must be between 0 and {MAX_LOGPROBS}, got {top}")
    return top


def _structured(fields: Fields) -> StructuredOutput | None:
    outputs: list[StructuredOutput] = []
    form = fields.inner("response_format")
    if form is not None:
        kind = form.required_text("type")
        if kind == "json_object":
            outputs.append(StructuredOutput("json_object"))
        elif kind == "json_schema":
            described = form.inner("json_schema")
            schema = None if described is None else described.object("schema")
            if schema is None:
                raise form.wrong("json_schema", "'response_format.json_schema' must hold a 'schema'")
            outputs.append(StructuredOutput("json", orjson.dumps(schema).decode()))
        elif kind != "text":
            raise form.wrong("type", f"'response_format.type' must be text, json_object or json_schema, got '{kind}'")
    # vLLM's fields, in older and in newer releases.
    outputs += _structures(fields, "guided_")
    newer = fields.inner("structured_outputs")
    if newer is not None:
        outputs += _structures(newer, "")
    if len(outputs) > 1:
        names = "response_format, structured_outputs and the guided_… fields"
        raise InvalidField("response_format", f"only one of {names} can be given")
    return outputs[0] if outputs else None


def _structures(fields: Fields, prefix: str) -> Iterator[StructuredOutput]:
    kinds: tuple[Literal["regex", "grammar", "json"], ...] = ("regex", "grammar", "json")
    for kind in kinds:
        value = fields.take(prefix + kind)
        if value is not None:
            yield StructuredOutput(kind, value if isinstance(value, str) else orjson.dumps(value).decode())
    if fields.boolean(f"{prefix}json_object"):
        yield StructuredOutput("json_object")
    choices = fields.texts(f"{prefix}choice")
    if choices:
        yield StructuredOutput("choice", orjson.dumps(choices).decode())


def read_messages(fields: Fields) -> list[dict[str, Any]]:
    """Return the messages of a chat in the form for templates. Raises InvalidField."""
    messages = fields.list("messages")
    if not messages:
        raise fields.wrong("messages", "'messages' must hold at least one message")
    return [_message(message, index) for index, message in enumerate(messages)]


def undecided_in_messages(document: Mapping[str, Any]) -> list[str]:
    """Return the fields in the messages of a chat that have no effect, as `chat_call` takes them."""
    return _MESSAGES.undecided(document.get("messages"))


def _message(message: Any, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise InvalidField(where, f"'{where}' must be an object")
    if message.get("role") not in _ROLES:
        roles = ", ".join(_ROLES)
        raise InvalidField(f"{where}.role", f"'{where}.role' must be one of {roles}, got {message.get('role')!r}")
    content = message.get("content")
    if isinstance(content, list):
        content = content_of([_part(part, f"{where}.content[{number}]") for number, part in enumerate(content)], "")
        if isinstance(content, list) and message["role"] != "user":
            text = f"'{where}.content' has an image: only messages of the user may"
            raise InvalidField(f"{where}.content", text)
    elif content is not None and not isinstance(content, str):
        raise InvalidField(f"{where}.content", f"'{where}.content' must be a string or an array of parts")
    if content is None and not message.get("tool_calls") and message["role"] != "assistant":
        raise InvalidField(f"{where}.content", f"'{where}' has no content")
    for name in ("audio", "function_call"):
        if message.get(name):
            note = CHAT[f"messages[].{name}"].note
            raise InvalidField(f"{where}.{name}", f"'{where}.{name}' is not supported: {note}")
    read = {**message, "content": content}
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise InvalidField(f"{where}.tool_calls", f"'{where}.tool_calls' must be an array")
        read["tool_calls"] = [_tool_call(call, f"{where}.tool_calls") for call in calls]
    return read


def _part(part: Any, where: str) -> str | dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "image_url":
        image = part.get(kind)
        return image_part(image.get("url") if isinstance(image, dict) else image, where)
    text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
    if kind in ("text", "refusal") and isinstance(text, str):
        return text
    rule = CHAT.get(f"messages[].content[].{kind}")
    note = rule.note if rule is not None and rule.decision == "refused" else "others are not supported"
    raise InvalidField(where, f"'{where}' must be of type text with a 'text', or image_url, got {kind!r}: {note}")


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    """Return a call of an earlier turn in the form for templates: with the arguments as an object."""
    name, text = _named(call, "custom"), _inside(call, "custom").get("input")
    if name is not None and isinstance(text, str):
        return {"id": call.get("id"), "type": "function", "function": {"name": name, "arguments": {CUSTOM_INPUT: text}}}
    if _named(call, "function") is None:
        raise InvalidField(where, f"'{where}' must hold calls with a 'function' that has a 'name'")
    function = call["function"]
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        arguments = arguments_object(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def _inside(value: Any, kind: str) -> dict[str, Any]:
    """Return the object that a tool, a call or a choice has in the field of its kind."""
    inside = value.get(kind) if isinstance(value, dict) else None
    return inside if isinstance(inside, dict) else {}


def _named(value: Any, kind: str) -> str | None:
    name = _inside(value, kind).get("name")
    return name if isinstance(name, str) and value.get("type", kind) == kind else None


def _tools(fields: Fields) -> tuple[list[dict[str, Any]], frozenset[str]]:
    """Return the tools as functions, and the names of those that take a text."""
    tools: list[dict[str, Any]] = []
    custom: set[str] = set()
    for tool in fields.list("tools") or []:
        name = _named(tool, "custom")
        if name is not None:
            custom.add(name)
            tools.append(_function_of(fields, tool["custom"]))
        elif _named(tool, "function") is not None and "type" in tool:
            tools.append(tool)
        else:
            text = "each of 'tools' must have the type 'function' and a 'function' with a 'name', or both 'custom'"
            raise fields.wrong("tools", text)
    return tools, frozenset(custom)


def _function_of(fields: Fields, custom: dict[str, Any]) -> dict[str, Any]:
    """Return the function that stands for a custom tool. The model is shown the format, which is not enforced."""
    form = custom.get("format")
    description = str(custom.get("description") or "")
    if isinstance(form, dict) and form.get("type") != "text":
        fields.ignore("tools[].custom.format")
        description = f"{description}\n\nThe input has this format: {orjson.dumps(form).decode()}".strip()
    parameters = {"type": "object", "properties": {CUSTOM_INPUT: {"type": "string"}}, "required": [CUSTOM_INPUT]}
    function = {"name": custom["name"], "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _tool_choice(fields: Fields, tools: list[dict[str, Any]]) -> tuple[str | Mapping[str, Any], list[dict[str, Any]]]:
    """Return the choice, and the tools that it leaves."""
    choice = fields.take("tool_choice")
    if choice is None:
        return ("auto" if tools else "none"), tools
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        tools = _allowed(fields, allowed, tools)
        choice = allowed.get("mode")
    if choice in ("none", "auto", "required"):
        if choice == "required" and not tools:
            raise fields.wrong("tool_choice", "'tool_choice' is 'required', but there are no tools")
        return str(choice), tools
    name = _named(choice, "function") or _named(choice, "custom")
    if name is None or name not in [tool["function"]["name"] for tool in tools]:
        raise fields.wrong("tool_choice", "'tool_choice' must be none, auto, required or the name of one of the tools")
    return {"name": name}, tools


def _allowed(fields: Fields, allowed: Any, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that a choice allows."""
    listed = allowed.get("tools") if isinstance(allowed, dict) else None
    names = [_named(tool, "function") or _named(tool, "custom") for tool in listed] if isinstance(listed, list) else []
    known = {tool["function"]["name"]: tool for tool in tools}
    if not names or not known.keys() >= set(names):
        raise fields.wrong("tool_choice", "'tool_choice.allowed_tools.tools' must name some of the tools")
    return [known[name] for name in known if name in names]
