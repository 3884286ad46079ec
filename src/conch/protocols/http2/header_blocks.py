# Compiled by mypyc in wheels.
"""Header blocks and the heads of requests in them. A server's own blocks are not compressed.

Once the peer's HPACK table has the fields of a call, the block of each further call is the same few bytes. So decoded
blocks are cached until the dynamic table changes. Blocks that a server sends do not use the dynamic table, so one
block serves all connections.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from conch.protocols.http2.frames import ConnectionFault, ErrorCode, StreamFault
from conch.protocols.http2.hpack_decoder import HpackDecoder

Field = tuple[bytes, bytes]
Head = TypeVar("Head")

_MAX_CACHED_BLOCKS: Final = 64
# Blocks of repeated calls are short: nearly every field is a reference.
_MAX_CACHED_BLOCK_BYTES: Final = 1024
_NEW_TABLE_SIZE: Final = 0x20
# Changes of the table's size at the beginning of one block (RFC 7541, section 4.2).
_MAX_SIZE_CHANGES: Final = 2
_STATUS_FIELD: Final = 8  # index of `:status: 200` in the static table; the name alone is its index as well


class HeaderBlocks(ABC, Generic[Head]):
    """Decodes the header blocks of one connection and caches what `interpret` makes of them."""

    def __init__(self, limit: int) -> None:
        """A list of fields above `limit` bytes ends the connection."""
        self._decoder = HpackDecoder(limit)
        self._table = self._decoder.table
        self._cache: dict[bytes, Head] = {}

    @abstractmethod
    def interpret(self, fields: Iterable[Field]) -> Head:
        """Make a head of decoded fields. Raises StreamFault."""

    def read(self, block: bytes) -> Head:
        """Return what `interpret` makes of a block. Raises ConnectionFault, and StreamFault for a malformed head."""
        head = self._cache.get(block)
        if head is not None:
            return head
        head = self.interpret(self._fields(block))
        if not self._table.changed and len(block) <= _MAX_CACHED_BLOCK_BYTES:
            if len(self._cache) >= _MAX_CACHED_BLOCKS:
                self._cache.clear()
            self._cache[block] = head
        return head

    def skip(self, block: bytes) -> None:
        """Decode a block only for its effect on the dynamic table. Raises ConnectionFault."""
        self._fields(block)

    def _fields(self, block: bytes) -> Iterable[Field]:
        # A new size of the table can only stand at the beginning.
        self._table.changed = block[:1] != b"" and block[0] & 0xE0 == _NEW_TABLE_SIZE
        if self._table.changed:
            _check_size_changes(block)
        try:
            return self._decoder.decode(block)
        finally:
            if self._table.changed:
                self._cache.clear()


def _check_size_changes(block: bytes) -> None:
    """Refuse a block that changes the size of the table more often than it may. Raises ConnectionFault."""
    position = changes = 0
    while position < len(block) and block[position] & 0xE0 == _NEW_TABLE_SIZE:
        changes += 1
        if changes > _MAX_SIZE_CHANGES:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "too many changes of the table's size")
        if block[position] & 0x1F == 0x1F:  # the number continues in the next octets
            position += 1
            while position < len(block) and block[position] & 0x80:
                position += 1
        position += 1


def response_block(status: int, fields: Iterable[Field]) -> bytes:
    """Write the header block of an answer."""
    text = b"%d" % status
    head = bytes((0x80 | _STATUS_FIELD,)) if status == 200 else bytes((_STATUS_FIELD,)) + _string(text)
    return head + trailers_block(fields)


def trailers_block(fields: Iterable[Field]) -> bytes:
    """Write fields, none of which enters the client's table. Names are in lower case."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in fields)


def _string(text: bytes) -> bytes:
    """Write a length with a prefix of seven bits (RFC 7541, section 5) and the text as it is."""
    size = len(text)
    if size < 0x7F:
        return bytes((size,)) + text
    octets = bytearray((0x7F,))
    size -= 0x7F
    while size >= 0x80:
        octets.append(size & 0x7F | 0x80)
        size >>= 7
    octets.append(size)
    return bytes(octets) + text


_CONNECTION_FIELDS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_PSEUDO_FIELDS: Final = frozenset({b":method", b":scheme", b":path", b":authority"})


class RequestHead(NamedTuple):
    """The head of a request. `fields` are without pseudo-fields; `size` is of all fields, as RFC 9113 counts it."""

    method: bytes
    path: bytes
    fields: list[Field]
    size: int
    authority: bytes = b""


class RequestBlocks(HeaderBlocks[Head]):
    """Decodes the header blocks of one client and caches what `interpret` makes of its requests."""

    def __init__(self, interpret: Callable[[RequestHead], Head], limit: int) -> None:
        """A list of fields above `limit` bytes ends the connection."""
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
    return RequestHead(method, path, regular, size, pseudo.get(b":authority", b""))


def _is_text(name: bytes, value: bytes) -> bool:
    return not any(mark in text for text in (name, value) for mark in (b"\0", b"\r", b"\n"))
