"""Reports of `conch bench` as documents: JSON files, or HTML pages that hold the JSON."""

import base64
import re
import zlib
from pathlib import Path
from typing import Any

import orjson

from conch.base.errors import InvalidRequest

FORMAT = "conch-benchmark"
SCHEMA_VERSION = 2
"""Raised with every change of a class of the document. Older documents stay readable, newer ones are refused."""
# Where an HTML report has its JSON.
_EMBEDDED = re.compile(
    rb'<script type="application/json" id="certificate"( data-encoding="gzip")?>([^<]*)</script>', re.DOTALL
)
_MAX_BYTES = 256 << 20


def read_benchmark(path: Path) -> dict[str, Any]:
    """Return the document of a file. Raises InvalidRequest."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InvalidRequest(f"'{path}' is larger than {_MAX_BYTES >> 20} MiB: not a certificate of conch bench")
        content = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read '{path}': {error.strerror or error}") from None
    try:
        return parse_benchmark(embedded_json(content) if content.lstrip()[:1] == b"<" else content)
    except ValueError as error:
        raise InvalidRequest(f"'{path}' is not a certificate of conch bench: {error}") from None


def embedded_json(page: bytes) -> bytes:
    """Return the JSON within an HTML report. Raises ValueError without one."""
    match = _EMBEDDED.search(page)
    if not match:
        raise ValueError("the page has no embedded certificate")
    if not match[1]:
        return match[2]
    try:
        content = zlib.decompressobj(wbits=31).decompress(base64.b64decode(match[2]), _MAX_BYTES)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"its embedded certificate is damaged: {error}") from None
    return content


def parse_benchmark(content: bytes) -> dict[str, Any]:
    """Return a document of a version that can be read, without its format. Raises ValueError."""
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"invalid JSON: {error}") from None
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise ValueError(f'it must be an object with "format": "{FORMAT}"')
    version = document.get("schema_version")
    if type(version) is not int or version < 1:
        raise ValueError(f"schema_version must be an integer from 1 to {SCHEMA_VERSION}, not {version!r}")
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"schema_version {version} is newer than {SCHEMA_VERSION}, the newest that this version of Conch reads;"
            " update Conch"
        )
    return document
