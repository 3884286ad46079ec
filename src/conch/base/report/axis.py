"""Axes of charts: domains, round ticks, and values with their units."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log, log10

_TIME_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def number(value: float) -> str:
    """Return a number with three digits: 0.25, 12.5, 1,250, 25k, 3.5M."""
    for symbol, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= max(size, 1e4):
            return f"{float(f'{value / size:.3g}'):,g}{symbol}"
    return f"{round(value):,}" if abs(value) >= 1000 else f"{value:.3g}"


def seconds(value: float) -> str:
    """Return a time with a fitting unit: 12.5 ms."""
    symbol, size = next((unit for unit in _TIME_UNITS if abs(value) >= unit[1] * 0.9995), _TIME_UNITS[-1])
    return f"{number(value / size)} {symbol}" if value else "0 s"


def percent(value: float) -> str:
    """Return a share as a percentage: 12.5 %."""
    return f"{number(value * 100)} %"


def clock(value: float) -> str:
    """Return whole seconds since the start in the largest fitting unit: 0, 45 s, 1:30 min, 6 h."""
    total = round(value)
    if total < 60:
        return f"{total} s" if total else "0"
    unit, size = ("h", 3600) if total >= 3600 else ("min", 60)
    whole, rest = divmod(total, size)
    return f"{whole}:{rest * 60 // size:02d} {unit}" if rest else f"{whole} {unit}"


@dataclass(frozen=True, slots=True)
class Axis:
    """How values become positions. `text` writes one with its unit; `include` are values that the axis must reach.

    An axis that is not `tight` has room beyond its values, and one that is not logarithmic begins at 0 unless `zero`
    is false. `ticks` replace the round ones.
    """

    label: str = ""
    text: Callable[[float], str] = number
    log: bool = False
    ticks: Sequence[float] = ()
    include: Sequence[float] = ()
    tight: bool = False
    zero: bool = True

    def scale(self, values: Iterable[float], wanted_ticks: int) -> "Scale":
        """Return the axis fitted to values."""
        usable = [value for value in (*values, *self.include) if isfinite(value) and (value > 0 or not self.log)]
        low, high = (min(usable), max(usable)) if usable else (1.0, 10.0)
        if self.log:
            if high / low < 1.5:
                low, high = low / 1.3, high * 1.3
            elif not self.tight:
                low, high = low / 1.08, high * 1.08
        else:
            low = min(low, 0.0) if self.zero else low
            high = high if high > low else low + 1
            room = 0 if self.tight else (high - low) * 0.06
            low, high = low - (room if low < 0 else 0), high + room
        ticks = self.ticks or (log_ticks if self.log else round_ticks)(low, high, wanted_ticks)
        slack = (high - low) * 1e-9
        return Scale(low, high, self.log, tuple(tick for tick in ticks if low - slack <= tick <= high + slack))


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `low` to `high`."""

    low: float
    high: float
    log: bool
    ticks: Sequence[float]

    def share(self, value: float) -> float:
        """Return where a value is: 0 at the low end, 1 at the high one; values beyond are at the ends."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return log(value / self.low) / log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def shows(self, value: float) -> bool:
        """Return whether a value is finite and, on a logarithmic axis, positive."""
        return isfinite(value) and (value > 0 or not self.log)


def round_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return about as many multiples of 1, 2 or 5 times a power of ten as wanted."""
    raw = (high - low) / wanted
    power = 10.0 ** floor(log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    return [count * step for count in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return powers of ten, with 2 and 5 times them between few; round numbers within less than about a decade."""
    decades = log10(high / low)
    factors = (1, 2, 5) if decades <= wanted / 3 else (1,)
    stride = max(1, ceil(decades / wanted))
    powers = [power for power in range(floor(log10(low)), ceil(log10(high)) + 1) if not power % stride]
    ticks = [tick for power in powers for factor in factors if low <= (tick := factor * 10.0**power) <= high]
    return ticks if len(ticks) >= 3 else round_ticks(low, high, wanted)


def round_times(end_s: float, wanted: int) -> list[float]:
    """Return round seconds, minutes or hours from 0 to the end."""
    steps = (*(n * 10.0**p for p in range(-6, 1) for n in (1, 2, 5)), 10, 15, 30)
    steps += (*(n * 60.0 for n in (1, 2, 5, 10, 15, 30)), *(n * 3600.0 for n in (1, 2, 3, 6, 12, 24, 48, 168)))
    step = next((step for step in steps if end_s / step <= wanted), steps[-1])
    return [count * step for count in range(floor(end_s / step + 1e-9) + 1)]
