# Compiled by mypyc in wheels.
"""Encode responses of the OpenAI API: models and errors; those of completions are in `choices`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from conch.base.errors import Code, ConchError, InvalidParameter, LimitExceeded, ModelLoading
from conch.protocols.openai.fields import InvalidField, ObjectNotFound

# Constant, as in vLLM's server.
_PERMISSION: Final = {
    "object": "model_permission",
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": False,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}
# What Codex tells a model of its catalogue; for models outside of it, it has its own text.
_CODEX_INSTRUCTIONS: Final = (
    "You are a coding agent that works in a terminal, in the folder of a project. Read what you need, change files "
    "with small patches, and run commands and tests with the tools that you have. Continue until the task is complete, "
    "then say in a few sentences what you have done and what is open. Do not invent files, commands or results."
)
END_OF_STREAM: Final = b"data: [DONE]\n\n"

# Begins of messages → codes that clients know: they shorten the conversation, or send it whole.
_CODES: Final = (
    ("This model's maximum context length is ", "context_length_exceeded"),
    ("Previous response with id ", "previous_response_not_found"),
)

_KINDS: Final = {
    Code.INVALID_ARG: "invalid_request_error",
    Code.UNSUPPORTED: "invalid_request_error",
    Code.NOT_FOUND: "invalid_request_error",
    Code.UNAVAILABLE: "server_overloaded",
    Code.CANCELLED: "cancelled",
}


def event(document: bytes) -> bytes:
    """Frame a document as one server-sent event."""
    return b"data: " + document + b"\n\n"


def error(cause: ConchError, *, code: str | None = None) -> bytes:
    """Encode an error: message, type, the invalid parameter and a code, if any."""
    kind = _KINDS.get(cause.code, "server_error")
    if isinstance(cause, LimitExceeded):
        kind, code = cause.quantity, "rate_limit_exceeded"
    elif isinstance(cause, ModelLoading):
        kind, code = "server_error", "model_loading"
    elif cause.code is Code.NOT_FOUND and not isinstance(cause, ObjectNotFound):
        code = code or "model_not_found"
    else:
        code = next((known for begin, known in _CODES if cause.message.startswith(begin)), code)
    document = {
        "message": cause.message,
        "type": kind,
        "param": cause.param if isinstance(cause, InvalidField | InvalidParameter) else None,
        "code": code,
    }
    return orjson.dumps({"error": document})


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model in the list of models. `parent` is the model of a LoRA adapter; times are of the epoch."""

    name: str
    created: int
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None  # tokens of prompt and completion together
    chat_template: str | None = None  # of a model that generates


def models(entries: Sequence[ModelEntry], loading: Sequence[str] | None = None) -> bytes:
    """Encode the list of models. The field `loading`, an extension, is sent during loads and has their models."""
    document: dict[str, Any] = {"object": "list", "data": [_model(entry) for entry in entries]}
    if loading is not None:
        document["loading"] = list(loading)
    return orjson.dumps(document)


def codex_catalogue(entries: Sequence[ModelEntry], loading: Sequence[str] | None = None) -> bytes:
    """Encode the list of models for Codex, which reads `models`: those that generate, with their context."""
    described = [
        {
            "slug": entry.name,
            "display_name": entry.name,
            "base_instructions": _CODEX_INSTRUCTIONS,
            "context_window": entry.max_model_len,
            "input_modalities": ["text"],
            "supports_parallel_tool_calls": True,
            "supported_reasoning_levels": [],
            "support_verbosity": False,
            "shell_type": "unified_exec",
            "truncation_policy": {"mode": "tokens", "limit": min(10_000, entry.max_model_len // 8)},
            "experimental_supported_tools": [],
            "visibility": "list",
            "supported_in_api": True,
            "priority": place,
        }
        for place, entry in enumerate(entries)
        if entry.max_model_len is not None
    ]
    return models(entries, loading)[:-1] + b',"models":' + orjson.dumps(described) + b"}"


def model(entry: ModelEntry) -> bytes:
    """Encode one model. The field `chat_template`, an extension, is sent for one that generates."""
    template = {} if entry.chat_template is None else {"chat_template": entry.chat_template}
    return orjson.dumps({**_model(entry), **template})


def unloaded(name: str) -> bytes:
    """Encode the response to the unloading of a model."""
    return orjson.dumps({"status": "success", "model": name})


def _model(entry: ModelEntry) -> dict[str, Any]:
    return {
        "id": entry.name,
        "object": "model",
        "created": entry.created,
        "owned_by": "conch",
        "root": entry.root or entry.name,
        "parent": entry.parent,
        "max_model_len": entry.max_model_len,
        "permission": [{"id": f"modelperm-{entry.name}", "created": entry.created, **_PERMISSION}],
    }
