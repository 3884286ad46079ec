# Compiled by mypyc in wheels.
"""Decodes HPACK (RFC 7541) with the tables of `hpack`.

Its own decoder takes 25 ms for a head of 64 KiB in Huffman's code, which a few clients can send at any rate.
"""

from typing import Final

from hpack import HPACKError
from hpack.huffman_table import HUFFMAN_TABLE

from conch.protocols.http2.frames import DEFAULT_HEADER_TABLE_BYTES, ConnectionFault, ErrorCode
from conch.protocols.http2.header_table import ChangeTable

_INDEXED: Final = 0x80
_LITERAL_TO_INDEX: Final = 0x40
_NEW_TABLE_SIZE: Final = 0x20
_HUFFMAN: Final = 0x80
# Octets of an integer: seven bits each, after those of the prefix.
_MAX_INTEGER_BYTES: Final = 5
# What a field counts in a list's size besides its name and value.
_FIELD_OVERHEAD_BYTES: Final = 32

# The automaton of Huffman's code: what four bits do in each state, at 16 * state + bits. An entry is the next state,
# flags and a symbol in one number, since looking up is what takes the time.
_TRANSITIONS: Final[list[int]] = [state << 12 | flags << 8 | symbol for state, flags, symbol in HUFFMAN_TABLE]
_STATE_SHIFT: Final = 12
_MAY_END: Final = 0x100
_EMITS: Final = 0x200
_FAILS: Final = 0x400


class HpackDecoder:
    """Decodes the header blocks of one connection. `limit` is the maximum size of a list of fields."""

    def __init__(self, limit: int) -> None:
        self.table = ChangeTable()
        self._limit = limit
        self._block = b""
        self._position = 0  # in the block that is being decoded

    def decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """Return the fields of a block. Raises ConnectionFault."""
        self._block = block
        self._position = 0
        fields: list[tuple[bytes, bytes]] = []
        size = 0
        try:
            while self._position < len(block):
                first = block[self._position]
                if first & _INDEXED:
                    field: tuple[bytes, bytes] = self.table.get_by_index(self._integer(0x7F))
                elif first & _LITERAL_TO_INDEX:
                    field = self._literal(0x3F)
                    self.table.add(field[0], field[1])
                elif first & _NEW_TABLE_SIZE:
                    self._resize(bool(fields))
                    continue
                else:
                    field = self._literal(0x0F)
                fields.append(field)
                size += len(field[0]) + len(field[1]) + _FIELD_OVERHEAD_BYTES
                if size > self._limit:
                    raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header list too large")
        except HPACKError as error:  # of the table
            raise _fault(str(error)) from None
        finally:
            self._block = b""
        return fields

    def _resize(self, late: bool) -> None:
        size = self._integer(0x1F)
        if late or size > DEFAULT_HEADER_TABLE_BYTES:
            raise _fault("invalid change of the table's size")
        self.table.maxsize = size

    def _literal(self, mask: int) -> tuple[bytes, bytes]:
        index = self._integer(mask)
        name: bytes = self.table.get_by_index(index)[0] if index else self._string()
        return name, self._string()

    def _integer(self, mask: int) -> int:
        """Read an integer whose prefix are the bits of `mask` (RFC 7541, section 5.1)."""
        number = self._octet() & mask
        if number < mask:
            return number
        shift = 0
        for _ in range(_MAX_INTEGER_BYTES):
            octet = self._octet()
            number += (octet & 0x7F) << shift
            if octet < 0x80:
                return number
            shift += 7
        raise _fault("integer too long")

    def _octet(self) -> int:
        if self._position >= len(self._block):
            raise _fault("truncated header block")
        octet = self._block[self._position]
        self._position += 1
        return octet

    def _string(self) -> bytes:
        coded = self._position < len(self._block) and self._block[self._position] & _HUFFMAN
        size = self._integer(0x7F)
        text = self._block[self._position : self._position + size]
        if len(text) < size:
            raise _fault("truncated header block")
        self._position += size
        return _plain(text) if coded else text


def _plain(text: bytes) -> bytes:
    """Return what a string in Huffman's code means. Raises ConnectionFault."""
    plain: list[int] = []
    transitions = _TRANSITIONS
    entry = _MAY_END
    for octet in text:
        entry = transitions[entry >> _STATE_SHIFT << 4 | octet >> 4]
        if entry & _EMITS:
            plain.append(entry & 0xFF)
        elif entry & _FAILS:
            raise _fault("invalid Huffman code")
        entry = transitions[entry >> _STATE_SHIFT << 4 | octet & 0x0F]
        if entry & _EMITS:
            plain.append(entry & 0xFF)
        elif entry & _FAILS:
            raise _fault("invalid Huffman code")
    if not entry & _MAY_END:
        raise _fault("incomplete Huffman code")
    return bytes(plain)


def _fault(reason: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.COMPRESSION_ERROR, reason)
