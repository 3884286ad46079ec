"""Values of a model's custom metrics in shared memory, so that a scrape at any time shows the last of them.

The area is the end of the output arena. The model's process writes a value in place, which takes no message; the server
reads when it is scraped. Each time series has a record, of words of 8 bytes:

    area   := end of the records in words | 7 unused words | records
    record := its size in words | serial number, 0 if it is free | time of the last change, monotonic ns | value |
              bytes of the definition | number of counts | counts | definition
    definition := JSON of [family, description, kind, labels, upper bounds of the buckets]

The value of a histogram is its sum, and its counts are those of each bucket, of which the last is for values above all
bounds. A record is complete before its serial number is written. A scrape may see a count before its sum.
"""

from __future__ import annotations

import json
from collections import deque
from time import monotonic_ns
from typing import Any, Deque, Dict, List, Sequence

import numpy as np

AREA_BYTES = 1 << 22
# Time series of one process. Each costs time in every scrape, and memory in Prometheus for hours.
MAX_SERIES = 2000
MAX_RECORDS = 2 * MAX_SERIES  # with free ones

WORD = 8
FIRST = 8
SIZE, SERIAL, TIME, VALUE, DEFINITION_BYTES, NUMBER_OF_COUNTS, COUNTS = range(7)


class NoRoom(Exception):
    """The area has no room for another series."""


class MetricArea:
    """The side that writes. `allocate` must be called by one thread at a time; the other methods by any thread."""

    def __init__(self, memory: Any) -> None:
        self._words = np.frombuffer(memory, "<u8")
        self._values = self._words.view("<f8")
        self._end = FIRST
        self._records = self._live = 0
        self._serial = 0
        self._free: Dict[int, List[int]] = {}  # size → positions
        self._released: Deque[int] = deque()
        self._words[0] = self._end

    def allocate(self, definition: Sequence[Any], counts: int) -> int:
        """Return the position of a new record. Raises NoRoom."""
        while self._released:
            position = self._released.popleft()
            self._free.setdefault(int(self._words[position]), []).append(position)
            self._live -= 1
        if self._live >= MAX_SERIES:
            raise NoRoom("this instance has {} time series already, which is the maximum".format(MAX_SERIES))
        text = json.dumps(definition).encode()
        size = 16
        while size < COUNTS + counts + -(-len(text) // WORD):
            size *= 2
        free = self._free.get(size)
        position = free.pop() if free else self._append(size)
        self._live += 1
        self._serial += 1
        words, start = self._words, position + COUNTS
        words[position + TIME] = monotonic_ns()
        self._values[position + VALUE] = 0.0
        words[position + DEFINITION_BYTES] = len(text)
        words[position + NUMBER_OF_COUNTS] = counts
        words[start : start + counts] = 0
        words[start + counts : position + size].view(np.uint8)[: len(text)] = np.frombuffer(text, np.uint8)
        words[position + SERIAL] = self._serial
        return position

    def set(self, position: int, value: float) -> None:
        """Write the value of a series."""
        self._values[position + VALUE] = value
        self._words[position + TIME] = monotonic_ns()

    def count(self, position: int, index: int) -> None:
        """Add one to a bucket; the caller holds the lock of the series."""
        self._words[position + COUNTS + index] += 1

    def release(self, position: int) -> None:
        """Remove a series. The garbage collector may call it at any point of any thread, so it takes no lock."""
        self._words[position + SERIAL] = 0
        self._released.append(position)

    def disconnect(self) -> None:
        """Write to private memory from now on, in a process that the model forked."""
        self._words = self._words.copy()
        self._values = self._words.view("<f8")

    def _append(self, size: int) -> int:
        position = self._end
        if self._records >= MAX_RECORDS or position + size > len(self._words):
            raise NoRoom("the time series of this instance exceed {} MiB".format(AREA_BYTES >> 20))
        self._records += 1
        self._words[position + SIZE] = size
        self._end = position + size
        self._words[0] = self._end
        return position
