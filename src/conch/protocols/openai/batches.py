"""Requests of `/v1/files` and `/v1/batches`, and the lines of their files."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Any

import orjson

from conch.domain.tensor import Buffer
from conch.protocols.openai.fields import Fields, InvalidField, read_object

MAX_LINES = 50_000  # as in OpenAI's API
MAX_LINE_BYTES = 120 * 1024  # which a server reads without a worker process
MAX_FILENAME_CHARACTERS = 255
_MAX_CUSTOM_ID_CHARACTERS = 512
_MAX_FORM_FIELDS = 16
# Of the type of a form and of a field's head: the time of `email` to read one grows with the square of its size.
_MAX_FORM_TYPE_CHARACTERS = 512
_MAX_FORM_HEAD_BYTES = 1024
_MAX_BOUNDARY_CHARACTERS = 200
_WINDOW = re.compile(r"([0-9]{1,3})h")
_MAX_WINDOW_HOURS = 168
_MIN_EXPIRY_S, _MAX_EXPIRY_S = 3600, 2_592_000
_MAX_METADATA = 16
_MAX_METADATA_CHARACTERS = 512


@dataclass(frozen=True, slots=True)
class Upload:
    """A file to keep; `expires_after_s` is None for the server's default."""

    filename: str
    purpose: str
    content: bytes
    expires_after_s: int | None


@dataclass(frozen=True, slots=True)
class BatchCall:
    """A batch to run. `window_s` is the time until it expires."""

    input_file_id: str
    endpoint: str
    window: str
    window_s: int
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch."""

    custom_id: str
    body: bytes


def read_upload(content_type: str, body: Buffer) -> Upload:
    """Decode a form with a file. Raises InvalidField."""
    fields = _form(content_type, bytes(body))
    purpose = _text(fields, "purpose")
    if purpose != "batch":
        raise InvalidField("purpose", f"'purpose' must be batch, got '{purpose}'")
    filename, content = fields.get("file", (None, b""))
    if filename is None:
        raise InvalidField("file", "you must provide a 'file' parameter")
    expires = None
    if "expires_after[seconds]" in fields:
        text = _text(fields, "expires_after[seconds]")
        expires = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
        if not _MIN_EXPIRY_S <= expires <= _MAX_EXPIRY_S:
            message = f"'expires_after[seconds]' must be between {_MIN_EXPIRY_S} and {_MAX_EXPIRY_S}, got '{text[:20]}'"
            raise InvalidField("expires_after", message)
    return Upload(filename[:MAX_FILENAME_CHARACTERS], purpose, content, expires)


def read_batch(body: Buffer, endpoints: Mapping[str, Any]) -> BatchCall:
    """Decode a request for a batch of one of the `endpoints`. Raises InvalidField."""
    fields = Fields(read_object(body))
    file, endpoint = fields.required_text("input_file_id"), fields.required_text("endpoint")
    window = fields.required_text("completion_window")
    if endpoint not in endpoints:
        known = ", ".join(sorted(endpoints))
        raise fields.wrong("endpoint", f"'endpoint' must be one of {known}, got '{endpoint[:80]}'")
    hours = _WINDOW.fullmatch(window)
    if hours is None or not 1 <= int(hours[1]) <= _MAX_WINDOW_HOURS:
        text = f"'completion_window' must be hours from 1h to {_MAX_WINDOW_HOURS}h, such as 24h, got '{window[:20]}'"
        raise fields.wrong("completion_window", text)
    metadata = fields.object("metadata") or {}
    sizes = [len(text) for pair in metadata.items() for text in pair if isinstance(text, str)]
    if (
        len(metadata) > _MAX_METADATA
        or len(sizes) < 2 * len(metadata)
        or max(sizes, default=0) > _MAX_METADATA_CHARACTERS
    ):
        text = f"'metadata' may have {_MAX_METADATA} texts of up to {_MAX_METADATA_CHARACTERS} characters"
        raise fields.wrong("metadata", text)
    return BatchCall(file, endpoint, window, int(hours[1]) * 3600, metadata)


def read_line(line: bytes, endpoint: str) -> BatchLine:
    """Decode a line of a batch for `endpoint`. Raises InvalidField."""
    if len(line) > MAX_LINE_BYTES:
        raise InvalidField(None, f"a line may have {MAX_LINE_BYTES} bytes at most, got {len(line)}")
    fields = Fields(read_object(line))
    custom_id, method, url = (fields.required_text(name) for name in ("custom_id", "method", "url"))
    if not 0 < len(custom_id) <= _MAX_CUSTOM_ID_CHARACTERS:
        raise fields.wrong("custom_id", f"'custom_id' must have 1 to {_MAX_CUSTOM_ID_CHARACTERS} characters")
    if method != "POST":
        raise fields.wrong("method", f"'method' must be POST, got '{method[:20]}'")
    if url != endpoint:
        raise fields.wrong("url", f"'url' must be the endpoint of the batch, {endpoint}, got '{url[:80]}'")
    body = fields.object("body")
    if body is None:
        raise fields.wrong("body", "you must provide a 'body' parameter")
    if body.get("stream"):
        raise fields.wrong("body", "'body.stream' is not supported: answers of batches are written to a file")
    return BatchLine(custom_id, orjson.dumps(body))


def answered(id: str, custom_id: str, status: int, request_id: str, body: bytes) -> bytes:  # noqa: A002
    """Encode the line of a request that was answered with a JSON body."""
    response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
    return _output(id, custom_id, response, None)


def unanswered(id: str, custom_id: str, code: str, message: str) -> bytes:  # noqa: A002
    """Encode the line of a request that was not answered."""
    return _output(id, custom_id, None, {"code": code, "message": message})


def _output(id: str, custom_id: str, response: Any, error: Any) -> bytes:  # noqa: A002
    document = {"id": id, "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def _form(content_type: str, body: bytes) -> dict[str, tuple[str | None, bytes]]:
    """Return filename and content of each field of `multipart/form-data`. Raises InvalidField."""
    if len(content_type) > _MAX_FORM_TYPE_CHARACTERS:
        raise InvalidField(None, f"the content type of a form may have {_MAX_FORM_TYPE_CHARACTERS} characters at most")
    head = Message()
    head["Content-Type"] = content_type
    boundary = head.get_param("boundary")
    if head.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
        raise InvalidField(None, "the body must be multipart/form-data with a boundary")
    if len(boundary) > _MAX_BOUNDARY_CHARACTERS or not boundary.isascii():
        raise InvalidField(None, f"the boundary of the form may have {_MAX_BOUNDARY_CHARACTERS} characters of ASCII")
    delimiter = b"--" + boundary.encode()
    first, *parts = body.split(b"\r\n" + delimiter, _MAX_FORM_FIELDS + 1)
    if not first.startswith(delimiter) or not parts or not parts[-1].startswith(b"--"):
        raise InvalidField(None, f"the form must end with its boundary and have at most {_MAX_FORM_FIELDS} fields")
    fields: dict[str, tuple[str | None, bytes]] = {}
    for part in (first.removeprefix(delimiter), *parts[:-1]):
        lines, _, content = part.partition(b"\r\n\r\n")
        if len(lines) > _MAX_FORM_HEAD_BYTES:
            raise InvalidField(None, f"the head of a field may have {_MAX_FORM_HEAD_BYTES} bytes at most")
        described = BytesHeaderParser().parsebytes(lines.lstrip(b"\r\n"))
        try:
            name, filename = described.get_param("name", header="Content-Disposition"), described.get_filename()
        except UnicodeError:  # in the encoding that the field names
            raise InvalidField(None, "the head of a field of the form is not valid") from None
        if isinstance(name, str):
            fields[name] = (filename, content)
    return fields


def _text(fields: Mapping[str, tuple[str | None, bytes]], name: str) -> str:
    if name not in fields:
        raise InvalidField(name, f"you must provide a '{name}' parameter")
    return fields[name][1][:_MAX_METADATA_CHARACTERS].decode("utf-8", "replace")
