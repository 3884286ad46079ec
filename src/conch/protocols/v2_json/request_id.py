"""The id of a request whose body is not parsed, for the error of a refusal that precedes parsing."""

import re
from typing import Any

import orjson

from conch.domain.tensor import Buffer

# Clients of Triton write the id first, and JSON before binary tensors is short.
_MAX_READ_BYTES = 4096
_MAX_DIGITS = 20  # of 64 bits
_FIRST_MEMBER = re.compile(rb'\s*\{\s*"id"\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)


def peek_id(body: Buffer, header_length: bytes | None) -> str:
    """Return the id of a request, "" if it has none or its JSON must be parsed further than 4 KiB to know it.

    `header_length` is the value of Inference-Header-Content-Length, None without one.
    """
    size = len(body)
    if header_length is not None and header_length.isdigit():
        size = min(int(header_length[:_MAX_DIGITS]), size)
    head = bytes(memoryview(body)[: min(size, _MAX_READ_BYTES)])
    first = _FIRST_MEMBER.match(head)
    text = first[1] if first is not None else b"null"
    if first is None and size <= _MAX_READ_BYTES and b'"id"' in head:
        text = head
    try:
        value: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return ""
    if isinstance(value, dict):
        value = value.get("id")
    return value if isinstance(value, str) else ""
