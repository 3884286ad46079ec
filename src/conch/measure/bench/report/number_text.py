"""Numbers with units and intervals as people read them: no more digits than the interval supports."""

import math
from dataclasses import dataclass

from conch.measure.bench.measurement import Estimate

MISSING = "–"
_DIGITS = 3  # significant digits of a value without an interval
# An interval is written with two values where its sides differ by more than this factor.
_MAX_ASYMMETRY = 2.0


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit and the factor by which a value in base units is multiplied for it."""

    symbol: str
    factor: float


SECONDS = (Unit("ns", 1e9), Unit("µs", 1e6), Unit("ms", 1e3), Unit("s", 1.0))
BYTES = (Unit("B", 1.0), Unit("KiB", 2.0**-10), Unit("MiB", 2.0**-20), Unit("GiB", 2.0**-30), Unit("TiB", 2.0**-40))
PERCENT = (Unit("%", 100.0),)
PLAIN = (Unit("", 1.0),)


def choose_unit(units: tuple[Unit, ...], value: float) -> Unit:
    """Return the largest unit in which the value is at least 1; the base unit for 0."""
    if not value:
        return min(units, key=lambda unit: abs(unit.factor - 1.0))
    fitting = [unit for unit in units if abs(value) * unit.factor >= 0.9995]
    return min(fitting, key=lambda unit: unit.factor) if fitting else max(units, key=lambda unit: unit.factor)


def format_value(value: float | None, units: tuple[Unit, ...]) -> str:
    """Return a value without an interval, to three digits: "12.3 ms"."""
    if value is None or not math.isfinite(value):
        return MISSING
    unit = choose_unit(units, value)
    scaled = value * unit.factor
    return _with_unit(_fixed(scaled, _decimals_of(scaled, _DIGITS)), unit)


def format_estimate(estimate: Estimate | None, units: tuple[Unit, ...]) -> str:
    """Return a value with its interval: "12.3 ms ±0.4", or "12.3 ms −0.4 +1.8" where that is lopsided."""
    if estimate is None or not math.isfinite(estimate.value):
        return MISSING
    below, above = margins(estimate)
    if below is None or above is None:
        return format_value(estimate.value, units)
    unit = choose_unit(units, estimate.value)
    value, low, high = (number * unit.factor for number in (estimate.value, below, above))
    widest = max(low, high)
    decimals = _decimals_of_margin(widest) if widest else _decimals_of(value, _DIGITS)
    decimals = min(decimals, _decimals_of(value, 4) if value else decimals)  # a tiny interval needs no long number
    shown = _with_unit(_fixed(value, decimals), unit)
    if not widest:
        return shown
    if estimate.value == 1.0 and not high and units is PERCENT:
        return f"{shown} −{_fixed(low, decimals)}" if round(low, decimals) else shown  # a share cannot exceed 100 %
    if widest <= _MAX_ASYMMETRY * min(low, high) or not min(low, high):
        margin = _fixed(widest, decimals)
        return f"{shown} ±{margin}" if float(margin.replace(",", "")) else shown
    decimals = min(_decimals_of_margin(min(low, high)), max(_decimals_of(widest, 2), decimals))
    return f"{_with_unit(_fixed(value, decimals), unit)} −{_fixed(low, decimals)} +{_fixed(high, decimals)}"


def format_change(change: Estimate) -> str:
    """Return a relative change with its sign and interval: "+3.1 % (1.2 to 5.0 %)"."""
    spread = [abs(bound - change.value) for bound in (change.low, change.high) if bound is not None]
    width = max(spread, default=0.0) * 100
    decimals = min(_decimals_of(width, 2) if width else 1, 2)
    value = _signed(change.value * 100, decimals)
    if change.low is None or change.high is None:
        return f"{value} %"
    return f"{value} % ({_signed(change.low * 100, decimals)} to {_signed(change.high * 100, decimals)} %)"


def margins(estimate: Estimate) -> tuple[float | None, float | None]:
    """Return how far the interval reaches below and above the value; None without an interval."""
    if estimate.low is None or estimate.high is None:
        return None, None
    return max(estimate.value - estimate.low, 0.0), max(estimate.high - estimate.value, 0.0)


def _decimals_of(value: float, digits: int) -> int:
    """Return the decimals that show `digits` significant digits, negative to the left of the point."""
    if not value or not math.isfinite(value):
        return 0
    exponent = math.floor(math.log10(abs(value)))
    if round(abs(value) / 10.0**exponent, digits - 1) >= 10:
        exponent += 1
    return digits - 1 - exponent


def _decimals_of_margin(margin: float) -> int:
    """Return the decimals that show one digit of a margin, or two if the first is 1: ±0.4, ±1.2."""
    two = _decimals_of(margin, 2)
    return two if round(margin * 10.0**two) < 20 else two - 1


def _fixed(value: float, decimals: int) -> str:
    rounded = round(value, decimals)
    return f"{rounded + 0.0:,.{max(decimals, 0)}f}"


def _signed(value: float, decimals: int) -> str:
    text = _fixed(abs(value), decimals)
    if not float(text.replace(",", "")):
        return text
    return f"{'−' if value < 0 else '+'}{text}"


def _with_unit(number: str, unit: Unit) -> str:
    return f"{number} {unit.symbol}".rstrip() if unit.symbol != "/s" else f"{number}/s"
