"""Trace and log settings in JSON: decode changes, encode settings.

Malformed JSON and wrong types are internal errors (500), as in Triton.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from conch.base.errors import Code, ConchError, InvalidRequest
from conch.domain.tensor import Buffer
from conch.protocols.json_document import parse

_TEXTS = ("trace_rate", "trace_count", "log_frequency")
_SWITCHES = ("log_info", "log_warning", "log_error")
_MAX_LEVEL = 2**31 - 1


def read_trace_changes(body: Buffer) -> dict[str, Sequence[str] | None]:
    """Return the settings to change by name, None for those to reset. Raises ConchError."""
    changes: dict[str, Sequence[str] | None] = {}
    for name, value in _members(body).items():
        if name == "trace_file":
            changes[name] = None  # refused for any value
        elif name == "trace_level":
            changes[name] = None if value is None else _levels(value)
        elif name in _TEXTS:
            changes[name] = None if value is None else [_text(value, name)]
    return changes


def read_log_changes(body: Buffer) -> dict[str, str | bool | int]:
    """Return the settings to change by name. Raises ConchError."""
    changes: dict[str, str | bool | int] = {}
    for name, value in _members(body).items():
        if value is None:
            continue  # as if missing
        if name == "log_file":
            changes[name] = ""  # refused for any value
        elif name == "log_format":
            changes[name] = _text(value, name)
        elif name in _SWITCHES:
            if type(value) is not bool:
                raise _wrong_type("boolean", name)
            changes[name] = value
        elif name == "log_verbose_level":
            if type(value) is not int or not 0 <= value <= _MAX_LEVEL:
                raise _wrong_type("unsigned-integer", name)
            changes[name] = value
    return changes


def settings_document(settings: Mapping[str, Any]) -> bytes:
    """Encode settings."""
    return orjson.dumps(settings)


def _members(body: Buffer) -> dict[str, Any]:
    if not body:
        raise ConchError("failed to parse the request JSON buffer: The document is empty. at 0", Code.INTERNAL)
    try:
        document = parse(body)
    except InvalidRequest as error:
        raise ConchError(error.message, Code.INTERNAL) from None
    return document if type(document) is dict else {}


def _levels(value: Any) -> list[str]:
    if type(value) is not list:
        raise _wrong_type("array", "trace_level")
    return [_text(level, "trace_level") for level in value]


def _text(value: Any, name: str) -> str:
    if type(value) is not str:
        raise _wrong_type("string", name)
    return value


def _wrong_type(kind: str, name: str) -> ConchError:
    return ConchError(f"attempt to access JSON non-{kind} as {kind} ('{name}')", Code.INTERNAL)
