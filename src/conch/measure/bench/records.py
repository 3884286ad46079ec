"""What the load generator records of each request, as rows of numpy arrays, and the log of a run.

All times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray


class RequestOutcome(IntEnum):
    """How a request ended. The rest of the reason, such as a message, is in the generator's error samples."""

    OK = 0
    CLIENT_ERROR = 1
    """Status 4xx but 429, or gRPC's INVALID_ARGUMENT, NOT_FOUND, UNAUTHENTICATED and the like."""
    REJECTED = 2
    """Status 429 or 503, RESOURCE_EXHAUSTED or UNAVAILABLE answered by the server: overload, limits, not ready."""
    SERVER_ERROR = 3
    """Status 5xx but 503, INTERNAL, UNKNOWN, an error within a stream."""
    CONNECTION_ERROR = 4
    """Refused, reset or closed before the answer was complete."""
    TIMEOUT = 5
    """No complete answer within the request timeout."""
    WRONG_ANSWER = 6
    """A complete answer that differs from the expected one, or that is not well-formed."""
    CANCELLED = 7
    """Cancelled by the client as the plan asks."""
    UNFINISHED = 8
    """Still in flight when the run ended."""


RECORD = np.dtype(
    [
        (
            "intended_ns",
            np.int64,
        ),  # when it was to be sent: by the schedule, or in a closed loop when its user was free
        ("sent_ns", np.int64),  # when its first byte was handed to the socket; 0 if it was never sent
        (
            "first_ns",
            np.int64,
        ),  # when its first token, response or byte of the body arrived; 0 if none did
        ("done_ns", np.int64),  # when it ended
        ("outcome", np.uint8),  # an RequestOutcome
        ("process", np.uint16),  # the generator's process
        ("status", np.uint16),  # of HTTP or gRPC as received; 0 if none
        ("request", np.uint32),  # the `index` of its PreparedRequest
        ("session", np.uint32),  # number of the virtual user's script
        ("sent_bytes", np.int64),
        ("received_bytes", np.int64),
        ("responses", np.uint32),  # content chunks or responses of a stream; 1 for a unary answer
        ("input_tokens", np.int32),  # -1: not reported by the server
        ("output_tokens", np.int32),  # including reasoning tokens; -1: not reported by the server
        ("reasoning_tokens", np.int32),  # -1: not reported by the server
        ("cached_tokens", np.int32),  # of the prompt, from the server's prefix cache; -1: not reported by the server
        ("chunks_from", np.int64),  # where its rows of CHUNK begin in the array that came with it; -1 if there are none
    ]
)
"""One row for each request that ended."""

CHUNK = np.dtype(
    [
        ("received_ns", np.int64),
        ("tokens", np.uint16),  # tokens in it if the server says so, else 0
        ("characters", np.uint32),  # length of its text, to spread tokens over chunks where only the sum is known
    ]
)
"""One row for each content chunk of a streamed answer, those of one request in succession."""

Records: TypeAlias = NDArray[np.void]
"""Rows of RECORD."""
Chunks: TypeAlias = NDArray[np.void]
"""Rows of CHUNK."""


def join_records(parts: Iterable[tuple[Records, Chunks]]) -> tuple[Records, Chunks]:
    """Return the rows of several arrays as one, with `chunks_from` adapted. The parts stay as they are."""
    joined, all_chunks = [np.empty(0, RECORD)], [np.empty(0, CHUNK)]
    before = 0
    for part, chunks in parts:
        records = part.copy()
        column = records["chunks_from"]
        column[column >= 0] += before
        before += len(chunks)
        joined.append(records)
        all_chunks.append(chunks)
    return np.concatenate(joined), np.concatenate(all_chunks)


@dataclass(frozen=True, slots=True)
class Collected:
    """What has come in since the call before."""

    records: Records
    chunks: Chunks
    in_flight: int
    errors: tuple[str, ...]
    """Some of the messages of failed requests, at most 100 a call, one line each."""
    ended: bool
    """Whether all processes have ended: the requests are sent, or `stop` was called."""


class RecordLog:
    """Collects records and chunks; `chunks_from` of its records index the joined chunks."""

    def __init__(self) -> None:
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
