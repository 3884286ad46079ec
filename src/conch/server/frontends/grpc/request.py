"""Reads the head of a gRPC call from the fields of an HTTP/2 request: metadata, timeout, codings."""

import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass

from conch.base.errors import ConchError, InvalidRequest, Unsupported
from conch.protocols.http.deadlines import DEADLINE
from conch.protocols.http2.header_blocks import Field, RequestHead, response_block
from conch.server.frontends.grpc.framing import CODINGS, IDENTITY
from conch.server.frontends.grpc.status import (
    ACCEPTED_CODINGS,
    CONTENT_TYPE,
    GrpcError,
    Status,
    error_block,
    error_fields,
    refusal_reason,
    status_of,
)
from conch.server.frontends.v2_grpc.infer import Metadata

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_PREFERRED = (b"gzip", b"deflate")
# Fields of the protocol, which are not metadata of the call.
_PROTOCOL_FIELDS = frozenset({b"te", b"content-type"})
_PROTOCOL_PREFIX = b"grpc-"


@dataclass(frozen=True, slots=True)
class GrpcRequest:
    """A call before its first message. `accepted` is the preferred coding for its answer."""

    path: str
    metadata: Metadata
    timeout_s: float | None = None
    deadline: bytes = b""  # the metadata `x-request-deadline`
    coding: bytes = IDENTITY
    accepted: bytes = IDENTITY
    refusal: bytes | None = None  # the header block that answers a call that is refused
    refusal_reason: str = ""  # as counted by `Traffic`
    refusal_status: str = ""
    refusal_text: str = ""


def read_request(head: RequestHead, header_limit: int, check: Callable[[str, Metadata], None]) -> GrpcRequest:
    """Read a call. `check` raises the ConchError by which a call of that path and metadata is refused."""
    path = head.path.decode("utf-8", "backslashreplace")
    if head.method != b"POST":
        return GrpcRequest(path, (), refusal=response_block(405, [(b"allow", b"POST")]))
    fields = dict(head.fields)
    if not fields.get(b"content-type", b"").startswith(CONTENT_TYPE[1]):
        return GrpcRequest(path, (), refusal=response_block(415, []))
    coding = fields.get(b"grpc-encoding", IDENTITY)
    if coding not in CODINGS:
        unknown = Unsupported(f"grpc-encoding '{coding.decode('ascii', 'backslashreplace')}' is not supported")
        block = response_block(200, [CONTENT_TYPE, *error_fields(unknown), ACCEPTED_CODINGS])
        return GrpcRequest(path, (), refusal=block)
    try:
        if head.size > header_limit:
            raise GrpcError(
                Status.RESOURCE_EXHAUSTED, f"metadata of {head.size} bytes exceeds the maximum of {header_limit}"
            )
        metadata = _metadata(head.fields)
        timeout_s = _timeout_s(fields.get(b"grpc-timeout"))
        check(path, metadata)
    except (ConchError, GrpcError) as error:
        return GrpcRequest(
            path,
            (),
            refusal=error_block(error),
            refusal_reason=refusal_reason(error),
            refusal_status=status_of(error).name,
            refusal_text=error.message,
        )
    accepted = _accepted(fields.get(b"grpc-accept-encoding", b""))
    return GrpcRequest(path, metadata, timeout_s, fields.get(DEADLINE, b""), coding, accepted)


def _metadata(fields: list[Field]) -> Metadata:
    metadata: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name in _PROTOCOL_FIELDS or name.startswith(_PROTOCOL_PREFIX):
            continue
        if name.endswith(b"-bin"):
            metadata += ((name.decode("latin-1"), _binary(name, part)) for part in value.split(b","))
        else:
            metadata.append((name.decode("latin-1"), value.decode("latin-1")))
    return tuple(metadata)


def _binary(name: bytes, text: bytes) -> bytes:
    text = text.strip()
    try:
        # Clients may omit the padding.
        return binascii.a2b_base64(text + b"=" * (-len(text) % 4), strict_mode=True)
    except binascii.Error:
        raise InvalidRequest(f"metadata '{name.decode('latin-1')}' is not base64") from None


def _timeout_s(text: bytes | None) -> float | None:
    if text is None:
        return None
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise InvalidRequest(
            f"grpc-timeout '{text.decode('ascii', 'backslashreplace')}' is not a valid timeout, expected e.g. 500m"
        )
    return int(match[1]) * _SECONDS[match[2]]


def _accepted(text: bytes) -> bytes:
    accepted = {coding.strip() for coding in text.split(b",")}
    return next((coding for coding in _PREFERRED if coding in accepted), IDENTITY)
