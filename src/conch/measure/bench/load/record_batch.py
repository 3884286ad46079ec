"""Rows of RECORD and CHUNK as the generator's processes collect them."""

import struct
from typing import Final

# The fields of RECORD and of CHUNK, without gaps; a test compares them with the numpy types.
RECORD_ROW: Final = struct.Struct("=qqqqBHHIIqqIiiiiq")
CHUNK_ROW: Final = struct.Struct("=qHI")

_ROWS: Final = 4_096


class RecordBatch:
    """Rows that have not been handed over."""

    __slots__ = ("_at", "_process", "_rows", "chunks", "count")

    def __init__(self, process: int) -> None:
        self._process = process
        self._rows = bytearray(_ROWS * RECORD_ROW.size)
        self._at = 0
        self.count = 0
        self.chunks = bytearray()

    def add(
        self,
        intended_ns: int,
        sent_ns: int,
        first_ns: int,
        done_ns: int,
        outcome: int,
        status: int,
        request: int,
        session: int,
        sent_bytes: int,
        received_bytes: int,
        responses: int,
        input_tokens: int,
        output_tokens: int,
        reasoning_tokens: int,
        cached_tokens: int,
        chunks: bytearray | None,
    ) -> None:
        """Append a row; `chunks` are its rows of CHUNK."""
        if self._at == len(self._rows):
            self._rows.extend(bytes(len(self._rows)))
        chunks_from = -1
        if chunks is not None:
            chunks_from = len(self.chunks) // CHUNK_ROW.size
            self.chunks += chunks
        RECORD_ROW.pack_into(
            self._rows, self._at, intended_ns, sent_ns, first_ns, done_ns, outcome, self._process, status, request,
            session, sent_bytes, received_bytes, responses, input_tokens, output_tokens, reasoning_tokens,
            cached_tokens, chunks_from,
        )  # fmt: skip
        self._at += RECORD_ROW.size
        self.count += 1

    def take(self) -> tuple[bytes, bytes]:
        """Return the rows of RECORD and of CHUNK, and begin again."""
        records = bytes(memoryview(self._rows)[: self._at])
        chunks = bytes(self.chunks)
        self._at = 0
        self.count = 0
        self.chunks = bytearray()
        return records, chunks
