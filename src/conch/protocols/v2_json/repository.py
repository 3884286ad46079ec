"""Requests of the model repository extension in JSON: index, load, unload. An empty body means the defaults."""

import base64
import binascii
from collections.abc import Callable
from typing import Any, TypeVar

from conch.base.errors import InvalidRequest
from conch.domain.tensor import Buffer
from conch.protocols.json_document import boolean, key_at_end, parameters_of, parse, shown, text

_FILE_PREFIX = "file:"
_Value = TypeVar("_Value")


def read_index(body: Buffer) -> bool:
    """Return whether to list ready models only. Raises InvalidRequest."""
    return _checked(boolean, _object(body).get("ready", False), "ready")


def read_load(body: Buffer) -> tuple[str | None, dict[str, bytes]]:
    """Return the configuration for a load, as JSON text, and the files, "<version>/<path>" → content.

    Raises InvalidRequest for unknown parameters, wrong types, and content that is not base64.
    """
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, value in _parameters(body).items():
        if key == "config":
            config = _checked(text, value, key)
        elif key.startswith(_FILE_PREFIX):
            files[key.removeprefix(_FILE_PREFIX)] = _decoded(key, _checked(text, value, key))
        else:
            raise InvalidRequest(f"unrecognized load parameter {shown(key)}: there are 'config' and 'file:<path>'")
    return config, files


def read_unload(body: Buffer) -> bool:
    """Return whether to unload the steps of an ensemble with it. Raises InvalidRequest."""
    unload_dependents = False
    for key, value in _parameters(body).items():
        if key != "unload_dependents":
            raise InvalidRequest(f"unrecognized unload parameter {shown(key)}: there is 'unload_dependents'")
        unload_dependents = _checked(boolean, value, key)
    return unload_dependents


def _checked(read: Callable[[Any, str], _Value], value: Any, key: str) -> _Value:
    try:
        return read(value, key)
    except InvalidRequest as error:
        raise key_at_end(error, key) from None


def _parameters(body: Buffer) -> dict[str, Any]:
    document = _object(body)
    try:
        return parameters_of(document)
    except InvalidRequest as error:
        raise key_at_end(error, "parameters") from None


def _object(body: Buffer) -> dict[str, Any]:
    document = parse(body) if body else {}
    if type(document) is not dict:
        raise InvalidRequest(f"the request body is a JSON object, not {shown(document)}")
    return document


def _decoded(key: str, content: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"content of {shown(key)} is not valid base64: {error}") from None
