"""Collects the requests of a trace while it is read."""

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from conch.domain.load_traces.load_trace import LoadTrace

MAX_REQUESTS = 20_000_000


class TraceError(ValueError):
    """A file that is not a trace of the format. The message names file and line."""


class TraceColumns:
    """Columns that grow; `finish` sorts them by time."""

    def __init__(self, name: str, *, has_tokens: bool) -> None:
        self._name = name
        self._has_tokens = has_tokens
        self._times: list[float] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._sessions: list[Hashable] = []
        self._hashes: list[tuple[int, ...]] = []

    def add(
        self,
        time_s: float,
        input_tokens: int = -1,
        output_tokens: int = -1,
        session: Hashable = None,
        hash_ids: tuple[int, ...] | None = None,
    ) -> None:
        """Append a request. Raises TraceError beyond the limit."""
        if len(self._times) >= MAX_REQUESTS:
            raise TraceError(f"{self._name}: more than {MAX_REQUESTS:,} requests; cut the file")
        self._times.append(time_s)
        self._inputs.append(input_tokens)
        self._outputs.append(output_tokens)
        self._sessions.append(session)
        if hash_ids is not None:
            self._hashes.append(hash_ids)

    def finish(self, expected: str) -> LoadTrace:
        """Return the trace. Raises TraceError if it is empty; `expected` says what would be right."""
        if not self._times:
            raise TraceError(f"{self._name}: no request found; expected {expected}")
        times = np.array(self._times)
        order = np.argsort(times, kind="stable")
        hashes = self._hashes if len(self._hashes) == len(times) else None
        return LoadTrace(
            self._name,
            times[order] - times[order[0]],
            np.array(self._inputs, dtype=np.int64)[order] if self._has_tokens else None,
            np.array(self._outputs, dtype=np.int64)[order] if self._has_tokens else None,
            self._session_numbers(order),
            None if hashes is None else tuple(hashes[index] for index in order),
        )

    def _session_numbers(self, order: NDArray[np.intp]) -> NDArray[np.int64] | None:
        """Return numbers in the order of first requests; each request without a session has its own."""
        if all(each is None for each in self._sessions):
            return None
        known = dict[Hashable, int]()
        numbers = [known.setdefault(_key(self._sessions[index], int(index)), len(known)) for index in order]
        return np.array(numbers, dtype=np.int64)


def _key(session: Hashable, index: int) -> Hashable:
    return ("", index) if session is None else session
