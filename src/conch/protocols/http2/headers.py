# Compiled by mypyc in wheels.
"""Heads of requests: the pseudo-fields and fields of decoded header blocks."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from conch.protocols.http2.frames import ErrorCode, StreamFault
from conch.protocols.http2.header_blocks import Field, HeaderBlocks

Head = TypeVar("Head")

_CONNECTION_FIELDS = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
_PSEUDO_FIELDS = frozenset({b":method", b":scheme", b":path", b":authority"})


class RequestHead(NamedTuple):
    """The head of a request. `fields` are without pseudo-fields; `size` is of all fields, as RFC 9113 counts it."""

    method: bytes
    path: bytes
    fields: list[Field]
    size: int


class RequestBlocks(HeaderBlocks[Head]):
    """Decodes the header blocks of one client and caches what `interpret` makes of its requests."""

    def __init__(self, interpret: Callable[[RequestHead], Head], limit: int) -> None:
        """Assign. A list of fields above `limit` bytes ends the connection."""
        super().__init__(limit)
        self._interpret = interpret

    def interpret(self, fields: Iterable[Field]) -> Head:
        return self._interpret(_request_head(fields))


def _request_head(fields: Iterable[Field]) -> RequestHead:
    """Separate pseudo-fields from the others. Raises StreamFault for what RFC 9113, section 8.2 calls malformed."""
    pseudo: dict[bytes, bytes] = {}
    regular: list[Field] = []
    size = 0
    for name, value in fields:
        size += len(name) + len(value) + 32
        if name[:1] == b":":
            if regular or name in pseudo or name not in _PSEUDO_FIELDS:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, "misplaced pseudo-field")
            pseudo[name] = value
        elif not name or name != name.lower() or name in _CONNECTION_FIELDS or not _is_text(name, value):
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "malformed field")
        elif name == b"te" and value != b"trailers":
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "te other than trailers")
        else:
            regular.append((name, value))
    method, path = pseudo.get(b":method"), pseudo.get(b":path")
    if not method or not path or not pseudo.get(b":scheme"):
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, "missing pseudo-field")
    return RequestHead(method, path, regular, size)


def _is_text(name: bytes, value: bytes) -> bool:
    return not any(mark in text for text in (name, value) for mark in (b"\0", b"\r", b"\n"))
