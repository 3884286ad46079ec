# Compiled by mypyc in wheels.
"""A sliding window of one second: what it counts, and the peak of it.

Pure: the caller gives the time, and counting allocates nothing.

The second has 100 slots of 10 ms. The window counts the current slot and the 100 before it, so a limit on its total is
never exceeded in any second, and a steady load reaches 99 % of the limit or more. All of a second's requests may come
at once: a burst up to the limit is admitted, and then as much as leaves the window.
"""

from typing import Final

SLOT_NS: Final = 10_000_000
_SLOTS: Final = 101
WINDOW_NS: Final = 1_000_000_000
# Minimum age of a peak that a scrape drops, so that a second scraper sees it, too.
PEAK_HOLD_NS: Final = 30_000_000_000


class RateWindow:
    """Counts events of the last second. All times are of one monotonic clock, in nanoseconds."""

    __slots__ = ("_held_since", "_peak", "_previous_peak", "_slots", "last_slot", "total")

    def __init__(self, now: int) -> None:
        self.total = 0  # as of the last call of `advance` or `add`
        self._slots: list[int] = [0] * _SLOTS
        self.last_slot = now // SLOT_NS  # of the last call of `advance`
        self._peak = 0
        self._previous_peak = 0
        self._held_since = now

    def advance(self, now: int) -> int:
        """Drop what has left the window, and return its total. An earlier time than the last one counts as that."""
        slot = now // SLOT_NS
        last = self.last_slot
        if slot <= last:
            return self.total
        self.last_slot = slot
        if self.total:
            slots = self._slots
            if slot - last >= _SLOTS:
                last = slot - _SLOTS
            while last < slot:
                last += 1
                index = last % _SLOTS
                count = slots[index]
                if count:
                    self.total -= count
                    slots[index] = 0
        return self.total

    def add(self, count: int) -> None:
        """Count events at the time of the last `advance`."""
        self._slots[self.last_slot % _SLOTS] += count
        total = self.total + count
        self.total = total
        if total > self._peak:
            self._peak = total

    def wait_for(self, room: int, limit: int) -> int:
        """Return the nanoseconds until `room` events fit below `limit`, as far as the window knows."""
        excess = self.total + room - limit
        slot = self.last_slot - _SLOTS
        while excess > 0 and slot < self.last_slot:
            slot += 1
            excess -= self._slots[slot % _SLOTS]
        return (slot + _SLOTS - self.last_slot) * SLOT_NS

    def take_peak(self, now: int) -> int:
        """Return the largest total since the scrape before the last one, for one scrape.

        Scrapes less than `PEAK_HOLD_NS` apart count as one here. So two scrapers see every burst, whatever their
        intervals are, and any number of them if each scrapes at least once a minute.
        """
        total = self.advance(now)
        peak = max(self._peak, self._previous_peak)
        if now - self._held_since >= PEAK_HOLD_NS:
            self._previous_peak = self._peak
            self._peak = total
            self._held_since = now
        return peak
