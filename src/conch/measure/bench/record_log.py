"""The records of a run as they come in, joined on demand."""

import numpy as np

from conch.measure.bench.load.generator import Collected
from conch.measure.bench.records import CHUNK, RECORD, Chunks, Records


class RecordLog:
    """Collects records and chunks; `chunks_from` of its records index the joined chunks."""

    def __init__(self) -> None:
        """Assign."""
        self._records: list[Records] = []
        self._chunks: list[Chunks] = []
        self._chunk_count = 0
        self.count = 0
        self.errors: dict[str, int] = {}
        """Messages of failed requests and how often each came, among the samples that the generator sends."""
        self.in_flight = 0

    def add(self, collected: Collected) -> None:
        """Append what one call of `Load.collect` returned."""
        self.in_flight = collected.in_flight
        for message in collected.errors:
            self.errors[message] = self.errors.get(message, 0) + 1
        if len(collected.records):
            records = collected.records
            if self._chunk_count and len(collected.chunks):
                records = records.copy()
                records["chunks_from"] += np.where(records["chunks_from"] >= 0, self._chunk_count, 0)
            self._records.append(records)
            self.count += len(records)
        if len(collected.chunks):
            self._chunks.append(collected.chunks)
            self._chunk_count += len(collected.chunks)

    @property
    def records(self) -> Records:
        """All records, in the order in which they came."""
        if len(self._records) != 1:
            self._records = [np.concatenate(self._records) if self._records else np.empty(0, RECORD)]
        return self._records[0]

    @property
    def chunks(self) -> Chunks:
        """All chunks."""
        if len(self._chunks) != 1:
            self._chunks = [np.concatenate(self._chunks) if self._chunks else np.empty(0, CHUNK)]
        return self._chunks[0]

    def tail(self, since_ns: int) -> Records:
        """Return the records that ended since `since_ns`, to show them while the load runs."""
        parts = []
        for records in reversed(self._records):
            late = records[records["done_ns"] >= since_ns]
            parts.append(late)
            if len(late) < len(records) // 2:
                break
        return np.concatenate(parts) if parts else np.empty(0, RECORD)
