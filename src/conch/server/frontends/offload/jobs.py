"""The jobs of worker processes: codecs as functions of a JSON object and buffers.

Each job imports what it needs, so that a worker which renders templates holds no numpy.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from conch.base import errors
from conch.base.errors import Code, ConchError
from conch.domain.tensor import Buffer

# Calls about texts: names of readers in protocols/openai/text_calls.py.
TEXT_KINDS = ("rerank", "score", "classify", "pooling", "cohere_embed", "cohere_embed_v1")
# Of an error, which may quote what a client has sent.
_MAX_MESSAGE_CHARACTERS = 65_536

Answer: TypeAlias = tuple[Mapping[str, Any], Sequence[Buffer]]


def run(name: str, args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Run a job. Raises ConchError."""
    return _JOBS[name](args, parts)


def describe(error: ConchError) -> dict[str, Any]:
    """Return an error as JSON values; `restore` makes the error of them."""
    return {
        "kind": type(error).__name__,
        "message": error.message[:_MAX_MESSAGE_CHARACTERS],
        "code": error.code.value,
        "param": getattr(error, "param", None),
    }


def restore(described: Mapping[str, Any]) -> ConchError:
    """Make the error that a worker has described."""
    from conch.base.errors import InvalidParameter
    from conch.protocols.compression import UnknownCoding
    from conch.protocols.openai.fields import InvalidField

    kind, message, param = str(described["kind"]), str(described["message"]), described["param"]
    if kind == "InvalidField":
        return InvalidField(param, message)
    if kind == "InvalidParameter":
        return InvalidParameter(str(param), message)
    if kind == "UnknownCoding":
        return UnknownCoding(message)
    error_class = getattr(errors, kind, None)
    if isinstance(error_class, type) and issubclass(error_class, ConchError):
        return error_class(message, Code(described["code"]))
    return ConchError(message)


def _nothing(_args: Mapping[str, Any], _parts: Sequence[memoryview]) -> Answer:
    return {}, ()


def _infer_request(args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Decompress a body and pack the tensors in its JSON: see `conch.protocols.v2_json.large`."""
    from conch.protocols.compression import decompress
    from conch.protocols.v2_json import large as large_json
    from conch.protocols.v2_json.inference import read_header_length

    body: Buffer = parts[0]
    if args["coding"]:
        body = decompress(body, args["coding"].encode("latin-1"), args["limit"])
    length = args["header_length"]
    header_length = read_header_length(None if length is None else length.encode("latin-1"), len(body))
    if header_length == 0:
        return {"raw": True}, (body,)
    view = memoryview(body)
    end = len(view) if header_length is None else header_length
    large_json.check_size(end, args["limit"])
    header, packed = large_json.pack_inputs(view[:end])
    # The server has the binary part already, unless it was compressed.
    tail = view[end:] if args["coding"] and header_length is not None else b""
    return {"raw": False, "binary": header_length is not None}, (header, tail, *packed)


def _infer_response(args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.v2_json import large as large_json

    return {}, large_json.write_response(args, parts)


def _classify(args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.domain.tensor import Tensor
    from conch.protocols.classification import classify

    made = []
    for described, data in zip(args["tensors"], parts, strict=True):
        tensor = Tensor(described["name"], described["datatype"], described["shape"], data)
        made.append(classify(tensor, described["count"], described["labels"], args["batched"]))
    return {"shapes": [tensor.shape for tensor in made]}, [tensor.data for tensor in made]


def _infer_message(args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.v2_proto.inference import split_fields
    from conch.protocols.v2_proto.large import pack_message

    body: Buffer = parts[0]
    if args["coding"]:
        from conch.server.frontends.grpc.framing import decompress_message
        from conch.server.frontends.grpc.status import GrpcError, Status

        try:
            body = decompress_message(body, args["coding"].encode("latin-1"))
        except GrpcError as error:
            kind = errors.TooLarge if error.status is Status.RESOURCE_EXHAUSTED else errors.InvalidRequest
            raise kind(error.message) from None
    head, packed, raw = pack_message(body)
    if raw is None and args["coding"]:
        fields, view = split_fields(body), memoryview(body)
        raw_parts: Sequence[Buffer] = [view[begin:end] for begin, end in fields.contents] if fields else []
    else:
        raw_parts = raw or []
    meta = {"packed": [data is not None for data in packed], "raw": raw is not None or bool(args["coding"])}
    return meta, [head, *(data for data in packed if data is not None), *raw_parts]


def _generate_request(args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.v2_json import generate

    return generate.pack_request(args, parts[0])


def _generate_response(args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.v2_json import generate

    return {}, (generate.write_response(args, parts),)


def _chat(_args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.openai import large as large_openai

    return large_openai.split_chat(parts[0])


def _message(_args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.anthropic.requests import split_message

    return split_message(parts[0])


def _response(_args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.openai.responses.requests import split_response

    return {}, split_response(parts[0])


def _completion(_args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.openai import large as large_openai

    return large_openai.split_prompts(parts[0], "prompt")


def _embedding(_args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.openai import large as large_openai

    return large_openai.split_prompts(parts[0], "input")


def _embeddings(args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    import numpy as np

    from conch.protocols.openai.embeddings import embeddings

    vectors = [np.frombuffer(part, "<f4") for part in parts]
    return {}, (embeddings(args["model"], vectors, args["tokens"], args["encoding"]),)


def _ollama_chat(_args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.ollama.requests import split_chat

    return split_chat(parts[0])


def _ollama_generate(_args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.ollama.requests import split_generate

    return {}, split_generate(parts[0])


def _ollama_embed(args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    import numpy as np

    from conch.protocols.ollama.replies import embeddings

    return {}, (embeddings(args, [np.frombuffer(part, "<f4") for part in parts]),)


def _ollama_embedding(args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    import numpy as np

    from conch.protocols.ollama.replies import embedding

    return {}, (embedding(args, [np.frombuffer(part, "<f4") for part in parts]),)


def _text_call(kind: str, _args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.openai.text_calls import READERS, split_call

    return split_call(READERS[kind](parts[0]))


def _text_answer(args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.openai.text_calls import write_answer

    return {}, (write_answer(args, parts),)


def _render(args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.domain.llm.chat_prompt import render

    meta, prompt, images = render(args, bytes(parts[0]))
    return {**meta, "images": [image[:-1] for image in images]}, (prompt, *(image.data for image in images))


def _load(_args: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    from conch.protocols.v2_json.documents import read_load

    config, files = read_load(parts[0])
    return {"config": config, "files": list(files)}, tuple(files.values())


_JOBS: dict[str, Callable[[Mapping[str, Any], Sequence[memoryview]], Answer]] = {
    "nothing": _nothing,
    "infer_request": _infer_request,
    "infer_response": _infer_response,
    "classify": _classify,
    "infer_message": _infer_message,
    "generate_request": _generate_request,
    "generate_response": _generate_response,
    "chat": _chat,
    "message": _message,
    "response": _response,
    "completion": _completion,
    "embedding": _embedding,
    "embeddings": _embeddings,
    "ollama_chat": _ollama_chat,
    "ollama_generate": _ollama_generate,
    "ollama_embed": _ollama_embed,
    "ollama_embedding": _ollama_embedding,
    **{f"text_{kind}": partial(_text_call, kind) for kind in TEXT_KINDS},
    "text_answer": _text_answer,
    "render": _render,
    "load": _load,
}
