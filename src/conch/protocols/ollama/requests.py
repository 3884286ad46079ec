"""Decode requests of Ollama's API. Conversations take the form of chat templates, as those of the OpenAI API.

What the client leaves out has the model's defaults, not Ollama's. Source: Ollama 0.13, `api/types.go`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from conch.domain.generation import SamplingParams, StructuredOutput
from conch.domain.llm.images import content_of, image_part
from conch.domain.tensor import Buffer
from conch.protocols.openai.embeddings import MAX_INPUTS, EmbeddingCall
from conch.protocols.openai.field_rules import OLLAMA_CHAT, OLLAMA_EMBEDDING, OLLAMA_GENERATE
from conch.protocols.openai.fields import Fields, InvalidField, read_object
from conch.protocols.openai.large import encode_rest
from conch.protocols.openai.nested_fields import NestedRules
from conch.protocols.openai.requests import ChatCall, CompletionCall, read_messages

_DEFAULT_TAG = ":latest"
# Ollama's names of sampling parameters.
_NUMBERS = {
    **{name: name for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty")},
    "repeat_penalty": "repetition_penalty",
}
_PARTS = ("messages", "prompt", "system", "images")
_MESSAGES = NestedRules("messages[].", OLLAMA_CHAT)
_TOOLS = NestedRules("tools[].", OLLAMA_CHAT)


def model_name(sent: str) -> str:
    """Return the name of a model without Ollama's default tag."""
    return sent.removesuffix(_DEFAULT_TAG)


def read_model(body: Buffer) -> str:
    """Return the model that a request names, by the field `model` or the older `name`. Raises InvalidField."""
    fields = Fields(read_object(body))
    return model_name(fields.text("model") or fields.required_text("name"))


def read_chat(body: Buffer) -> ChatCall:
    """Decode a request to `/api/chat`; without messages it only asks for the model. Raises InvalidField."""
    document = read_object(body)
    return _chat(Fields(document, OLLAMA_CHAT), _conversation(Fields(document)), _undecided(document))


def read_generate(body: Buffer) -> ChatCall | CompletionCall:
    """Decode a request to `/api/generate`. A raw prompt, and an empty one, are not rendered. Raises InvalidField."""
    document = read_object(body)
    return _generate(Fields(document, OLLAMA_GENERATE), _turn(Fields(document)))


def split_chat(body: Buffer) -> tuple[dict[str, Any], list[Buffer]]:
    """Return metadata for `join_chat`, and the body without its conversation, and that as JSON. Raises InvalidField."""
    document = read_object(body)
    conversation = _conversation(Fields(document))
    return {"ignored": _undecided(document)}, _split(document, conversation)


def split_generate(body: Buffer) -> list[Buffer]:
    """Return the body without its prompt, and that as JSON. Raises InvalidField."""
    document = read_object(body)
    return _split(document, _turn(Fields(document)))


def _split(document: Mapping[str, Any], conversation: Sequence[Mapping[str, Any]]) -> list[Buffer]:
    rest = {name: value for name, value in document.items() if name not in _PARTS}
    return [encode_rest(rest), orjson.dumps(conversation)]


def join_chat(meta: Mapping[str, Any], parts: Sequence[Buffer]) -> ChatCall:
    """Decode what `split_chat` returns. Raises InvalidField."""
    rest, conversation = parts
    fields = Fields(read_object(rest, checked=True), OLLAMA_CHAT)
    return _chat(fields, conversation if conversation != b"[]" else (), meta["ignored"])


def join_generate(parts: Sequence[Buffer]) -> ChatCall | CompletionCall:
    """Decode what `split_generate` returns. Raises InvalidField."""
    rest, turn = parts
    return _generate(Fields(read_object(rest, checked=True), OLLAMA_GENERATE), turn if turn != b"[]" else ())


def read_embed(body: Buffer, inputs: Sequence[str | Sequence[int]] | None = None) -> EmbeddingCall:
    """Decode a request to `/api/embed`. A worker may have split the `inputs` from it. Raises InvalidField."""
    fields = Fields(read_object(body, checked=inputs is not None), OLLAMA_EMBEDDING)
    dimensions = fields.integer("dimensions")
    if dimensions is not None and dimensions < 1:
        raise fields.wrong("dimensions", f"'dimensions' must be at least 1, got {dimensions}")
    inputs = inputs or fields.prompts("input", MAX_INPUTS)
    cut = fields.boolean("truncate", True)
    return _embedding(fields, "input", inputs, dimensions=dimensions, truncate=-1 if cut else None)


def read_embeddings(body: Buffer, inputs: Sequence[str | Sequence[int]] | None = None) -> EmbeddingCall:
    """Decode a request to the older `/api/embeddings`, which has one text. Raises InvalidField."""
    fields = Fields(read_object(body, checked=inputs is not None), OLLAMA_EMBEDDING)
    return _embedding(fields, "prompt", inputs or [fields.required_text("prompt")], truncate=-1)


def _embedding(
    fields: Fields,
    name: str,
    inputs: Sequence[str | Sequence[int]],
    *,
    truncate: int | None,
    dimensions: int | None = None,
) -> EmbeddingCall:
    if not all(isinstance(text, str) and text for text in inputs):
        raise fields.wrong(name, f"'{name}' must hold texts that are not empty")
    model = model_name(fields.required_text("model"))
    fields.inner("options")
    return EmbeddingCall(model=model, inputs=inputs, dimensions=dimensions, truncate=truncate, ignored=fields.done())


def _undecided(document: Mapping[str, Any]) -> list[str]:
    """Return the fields of messages that have no effect."""
    return _MESSAGES.undecided(document.get("messages"))


def _chat(fields: Fields, conversation: Sequence[Mapping[str, Any]] | Buffer, ignored: Sequence[str]) -> ChatCall:
    fields.ignore(*ignored)
    tools = fields.list("tools") or []
    fields.ignore(*_TOOLS.undecided(tools))
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise fields.wrong("tools", "each of 'tools' must have a 'function' with a 'name'")
    return _rendered(
        fields,
        conversation,
        tools=[{"type": "function", **tool} for tool in tools],
        tool_choice="auto" if tools else "none",
    )


def _generate(fields: Fields, turn: Sequence[Mapping[str, Any]] | Buffer) -> ChatCall | CompletionCall:
    if not fields.boolean("raw") or not turn:
        return _rendered(fields, turn)
    messages = turn if isinstance(turn, list) else orjson.loads(turn)  # type: ignore[arg-type]  # JSON of a worker
    prompt = messages[-1]["content"]
    if not isinstance(prompt, str):
        raise fields.wrong("images", "'images' are not supported with 'raw': the chat template places them")
    return CompletionCall(prompts=[prompt], **_common(fields))


def _rendered(fields: Fields, conversation: Sequence[Mapping[str, Any]] | Buffer, **tools: Any) -> ChatCall:
    if not conversation and fields.take("keep_alive") in (0, "0", "0s", "0m", "0h"):
        text = "models are not unloaded by a request; --idle-unload-secs stops the engines of idle ones"
        raise fields.wrong("keep_alive", f"'keep_alive' of 0 is not supported: {text}")
    think = fields.take("think")
    arguments: dict[str, Any] = {}
    if isinstance(think, str) and think:
        arguments = {"enable_thinking": True, "reasoning_effort": think}
    elif isinstance(think, bool):
        arguments = {"enable_thinking": think}
    elif think:
        raise fields.wrong("think", "'think' must be true, false, or the effort as a text such as \"high\"")
    return ChatCall(
        messages=conversation,
        template_arguments=arguments,
        include_reasoning=think is not False,
        **tools,
        **_common(fields),
    )


def _common(fields: Fields) -> dict[str, Any]:
    """Read what both paths share, at the end."""
    for name in _PARTS:
        fields.take(name)
    model = model_name(fields.required_text("model"))
    return {
        "model": model,
        "params": _params(fields),
        "stream": fields.boolean("stream", True),
        "include_usage": True,
        "ignored": fields.done(),
    }


def _params(fields: Fields) -> SamplingParams:
    arguments: dict[str, Any] = {"structured": _structured(fields)}
    logprobs, top = fields.boolean("logprobs"), fields.integer("top_logprobs")
    if logprobs:
        arguments["logprobs"] = top or 0
    options = fields.inner("options")
    if options is not None:
        for name, parameter in _NUMBERS.items():
            number = options.number(name)
            if number is not None:
                arguments[parameter] = number
        seed, most, top_k = options.integer("seed"), options.integer("num_predict"), options.integer("top_k")
        arguments["seed"] = None if seed == -1 else seed
        arguments["max_tokens"] = None if most is None or most <= 0 else most  # until the context is full
        arguments["top_k"] = max(0, top_k or 0)
        arguments["stop"] = options.texts("stop")
    params = SamplingParams(**arguments)
    params.check()
    return params


def _structured(fields: Fields) -> StructuredOutput | None:
    form = fields.take("format")
    if not form:
        return None
    if form == "json":
        return StructuredOutput("json_object")
    if not isinstance(form, dict):
        raise fields.wrong("format", "'format' must be \"json\" or a JSON schema")
    return StructuredOutput("json", orjson.dumps(form).decode())


def _turn(fields: Fields) -> list[dict[str, Any]]:
    """Return the prompt of `/api/generate` as a conversation, which is empty if the prompt is."""
    prompt, system = fields.text("prompt"), fields.text("system")
    if not prompt:
        return []
    content = _with_images(prompt, fields.list("images"), "images")
    return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": content}]


def _conversation(fields: Fields) -> list[dict[str, Any]]:
    messages = fields.list("messages") or []
    document = {"messages": [_message(message) for message in messages]}
    read = read_messages(Fields(document)) if messages else []
    for index, message in enumerate(read):
        where = f"messages[{index}].images"
        images = Fields(messages[index]).list("images")
        if images and message["role"] != "user":
            raise InvalidField(where, f"'{where}' are not supported: only messages of the user may have images")
        message["content"] = _with_images(message["content"], images, where)
    return read


def _with_images(text: str, images: Sequence[Any] | None, where: str) -> str | list[dict[str, Any]]:
    """Return a content that begins with the images, as Ollama's templates place them."""
    parts = [image_part(f"data:;base64,{image}", f"{where}[{number}]") for number, image in enumerate(images or ())]
    return content_of([*parts, text], "")


def _message(message: Any) -> Any:
    """Return a message as the OpenAI API has it. What is not an object is refused by that API's reader."""
    if not isinstance(message, dict):
        return message
    read = {name: value for name, value in message.items() if name not in ("images", "thinking", "tool_name")}
    if read.get("content") is None:
        read["content"] = ""  # which clients leave out
    for name, known in (("thinking", "reasoning_content"), ("tool_name", "name")):
        if message.get(name):
            read[known] = message[name]
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        read["tool_calls"] = [{"type": "function", **call} if isinstance(call, dict) else call for call in calls]
    return read
