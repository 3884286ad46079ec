# Compiled by mypyc in wheels.
"""Header blocks of requests: the first one of a connection fills the server's HPACK table, the others are a few bytes.

What a connection sends with each request, the path of the first one included, becomes entries of the dynamic table
(RFC 7541). Later blocks are references to them, one byte each. Other paths are sent as text.
"""

from conch.protocols.http2.frames import DEFAULT_HEADER_TABLE_BYTES

# Indexes of the static table.
_AUTHORITY = 1
_METHOD_POST = 3
_PATH = 4
_SCHEME_HTTP = 6
_SCHEME_HTTPS = 7
_STATIC_NAMES = {b":authority": _AUTHORITY, b"authorization": 23, b"content-type": 31, b"user-agent": 58}
_STATIC_ENTRIES = 61

_INDEXED = 0x80
_ADDED = 0x40  # literal with incremental indexing
_PLAIN = 0x00  # literal without indexing
_NEW_SIZE = 0x20
_ENTRY_OVERHEAD_BYTES = 32


class RequestHeaders:
    """Encodes the header blocks of one connection."""

    __slots__ = ("_added", "_fields", "_next", "_path", "_prefix", "_start", "_table")

    def __init__(self, secure: bool, fields: list[tuple[bytes, bytes]]) -> None:
        """`fields`, `:authority` among them, go with each request; names are in lower case."""
        scheme = _SCHEME_HTTPS if secure else _SCHEME_HTTP
        self._start = bytes((_INDEXED | _METHOD_POST, _INDEXED | scheme))
        self._fields = fields
        self._table = DEFAULT_HEADER_TABLE_BYTES
        self._prefix = b""  # a change of the table's size, due at the beginning of the next block
        self._path = b""  # whose entry is in the table
        self._added = False
        self._next = b""  # the block of `_path`, once the table is filled

    def limit_table(self, size: int) -> None:
        """Limit the table to the size that the server allows."""
        if size >= self._table:  # it never grows again: then both sizes would have to be sent
            return
        if self._added:
            # Entries may be lost: without a table there is nothing to track.
            size = 0
            self._next = b""
        self._table = size
        self._prefix = _integer(size, 5, _NEW_SIZE)

    def block(self, path: bytes) -> bytes:
        """Return the block of a request; it must be sent, in this order."""
        if self._next and path == self._path and not self._prefix:
            return self._next
        prefix, self._prefix = self._prefix, b""
        if not self._added and self._fits(path):
            return prefix + self._fill(path)
        if self._table == 0 or not self._added:
            return prefix + self._start + self._text(path)
        # Entries are found from the newest one, whose index is 62: the path's is the oldest.
        fields = self._references()
        return prefix + self._start + _literal(_PLAIN, _PATH, b"", path) + fields

    def _fits(self, path: bytes) -> bool:
        size = len(b":path") + len(path) + _ENTRY_OVERHEAD_BYTES
        for name, value in self._fields:
            size += len(name) + len(value) + _ENTRY_OVERHEAD_BYTES
        return size <= self._table

    def _fill(self, path: bytes) -> bytes:
        self._added = True
        self._path = path
        parts = [self._start, _literal(_ADDED, _PATH, b"", path)]
        for name, value in self._fields:
            parts.append(_literal(_ADDED, _STATIC_NAMES.get(name, 0), name, value))
        path_index = _STATIC_ENTRIES + 1 + len(self._fields)
        self._next = self._start + _integer(path_index, 7, _INDEXED) + self._references()
        return b"".join(parts)

    def _references(self) -> bytes:
        newest_last = range(_STATIC_ENTRIES + len(self._fields), _STATIC_ENTRIES, -1)
        return b"".join([_integer(index, 7, _INDEXED) for index in newest_last])

    def _text(self, path: bytes) -> bytes:
        parts = [_literal(_PLAIN, _PATH, b"", path)]
        for name, value in self._fields:
            parts.append(_literal(_PLAIN, _STATIC_NAMES.get(name, 0), name, value))
        return b"".join(parts)


def _literal(kind: int, index: int, name: bytes, value: bytes) -> bytes:
    """Write a field as text; `index` is that of its name in the static table, 0 if it has none."""
    head = _integer(index, 6 if kind == _ADDED else 4, kind)
    if not index:
        head += _integer(len(name), 7, 0) + name
    return head + _integer(len(value), 7, 0) + value


def _integer(value: int, bits: int, flags: int) -> bytes:
    """Write a number with a prefix of `bits` bits (RFC 7541, section 5.1)."""
    largest = (1 << bits) - 1
    if value < largest:
        return bytes((flags | value,))
    octets = [flags | largest]
    value -= largest
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)
