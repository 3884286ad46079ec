"""A recorded load: when requests came, and how long they were."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LoadTrace:
    """Requests in the order of their times. Optional columns are None where the format does not have them."""

    name: str
    times_s: NDArray[np.float64]  # from the first request
    input_tokens: NDArray[np.int64] | None = None  # -1: unknown
    output_tokens: NDArray[np.int64] | None = None  # -1: unknown
    sessions: NDArray[np.int64] | None = None  # numbers from 0
    hash_ids: tuple[tuple[int, ...], ...] | None = None
    """Of each request, ids of the blocks of its prompt: equal ids are equal text (Mooncake: 512 tokens each)."""

    @property
    def duration_s(self) -> float:
        """The time of the last request."""
        return float(self.times_s[-1]) if len(self.times_s) else 0.0

    def window(self, start_s: float, end_s: float) -> "LoadTrace":
        """Return the requests from `start_s` until before `end_s`, with times from `start_s`.

        Raises ValueError if there are none.
        """
        first, last = np.searchsorted(self.times_s, (start_s, end_s))
        if first >= last:
            raise ValueError(
                f"{self.name} has no request from {start_s:g} s to {end_s:g} s; it is {self.duration_s:g} s long"
            )
        part = slice(int(first), int(last))
        return LoadTrace(
            self.name,
            self.times_s[part] - start_s,
            _part(self.input_tokens, part),
            _part(self.output_tokens, part),
            _part(self.sessions, part),
            None if self.hash_ids is None else self.hash_ids[part],
        )

    def faster(self, factor: float) -> "LoadTrace":
        """Return the trace at `factor` times its speed."""
        if not 1e-6 <= factor <= 1e6:
            raise ValueError(f"a trace cannot be replayed {factor:g} times as fast; expected a factor such as 2 or 0.5")
        times = self.times_s / factor
        return LoadTrace(self.name, times, self.input_tokens, self.output_tokens, self.sessions, self.hash_ids)


def _part(column: NDArray[np.int64] | None, part: slice) -> NDArray[np.int64] | None:
    return None if column is None else column[part]
