"""What the load generator records of each request, as rows of numpy arrays.

All times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from collections.abc import Iterable
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
