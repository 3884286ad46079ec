"""Find the highest level of load that meets the SLOs, with few measurements."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SloSearch:
    """A search between `lowest` and `highest`. Levels grow by `factor` until one fails, then the gap is halved.

    Integers for concurrencies; the search ends when the gap is less than `resolution` of the level, or is 1.
    """

    lowest: float = 1.0
    highest: float = 4096.0
    factor: float = 2.0
    resolution: float = 0.05
    integers: bool = True

    def next_level(self, tried: Mapping[float, bool]) -> float | None:
        """Return the level to measure next, given which of those tried met the SLOs; None at the end."""
        if not tried:
            return self.lowest
        failed = [level for level, met in tried.items() if not met]
        lowest_failed = min(failed, default=None)
        best = self.best(tried)
        if best is None:
            return None  # the lowest level fails already
        if lowest_failed is None:
            return None if best >= self.highest else self._rounded(min(best * self.factor, self.highest))
        gap = lowest_failed - best
        if gap <= max(self.resolution * best, 1.0 if self.integers else 0.0):
            return None
        return self._rounded((best + lowest_failed) / 2)

    def best(self, tried: Mapping[float, bool]) -> float | None:
        """Return the highest level below all that failed, None if there is none."""
        lowest_failed = min((level for level, met in tried.items() if not met), default=float("inf"))
        return max((level for level, met in tried.items() if met and level < lowest_failed), default=None)

    def _rounded(self, level: float) -> float:
        return float(round(level)) if self.integers else level
