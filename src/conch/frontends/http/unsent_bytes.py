"""Bytes that wait for a slow client."""

# A single buffer of all bytes would be moved each time it grows, and the heap would keep several times its size.
_MAX_BLOCK_BYTES = 2**20


class UnsentBytes:
    """A queue of bytes, kept in blocks of about 1 MiB. `len` is the number of bytes."""

    __slots__ = ("_blocks", "_size")

    def __init__(self) -> None:
        self._blocks: list[bytearray] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        blocks = self._blocks
        if not blocks or len(blocks[-1]) >= _MAX_BLOCK_BYTES:
            blocks.append(bytearray())
        blocks[-1] += data
        self._size += len(data)

    def take(self) -> list[bytes]:
        """Return all bytes, in order, and remove them."""
        taken = [bytes(block) for block in self._blocks]
        self.clear()
        return taken

    def clear(self) -> None:
        """Drop all bytes."""
        self._blocks = []
        self._size = 0
