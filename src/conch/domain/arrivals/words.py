"""Arrivals as words of the command line."""

import math

from conch.base.durations import parse_duration
from conch.domain.arrivals.arrival_times import ArrivalProcess
from conch.domain.arrivals.rate_curve import RateCurve, bursts, ramp

MAX_RATE = 10_000_000.0


def parse_arrivals(text: str) -> tuple[ArrivalProcess, float]:
    """Return process and coefficient of variation of constant, poisson or gamma:CV. Raises ValueError."""
    name, colon, rest = text.strip().partition(":")
    if name == "gamma" and colon:
        try:
            cv = float(rest)
        except ValueError:
            cv = math.nan
        if 0 <= cv <= 100:
            return ArrivalProcess.GAMMA, cv
    elif not colon and name in ("constant", "poisson"):
        return ArrivalProcess(name), 0.0 if name == "constant" else 1.0
    raise ValueError(f"'{text}' is not a valid form of arrivals; expected constant, poisson or gamma:CV with CV ≤ 100")


def parse_rates(text: str) -> tuple[float, ...]:
    """Return the rates of a list such as 100,200 or a range START:END:STEP or START:END:xFACTOR. Raises ValueError."""
    form = "rates such as 100,200 or a range such as 100:400:50 or 100:1600:x2"
    if ":" not in text:
        return tuple(_rate(part, text, form) for part in text.split(","))
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise ValueError(f"'{text}' is not valid; expected {form}")
    start, end = _rate(parts[0], text, form), _rate(parts[1], text, form)
    step = parts[2].strip() if len(parts) == 3 else "1"
    multiplies = step.startswith("x")
    size = _rate(step.removeprefix("x"), text, form)
    if end < start or (multiplies and size <= 1) or (not multiplies and (end - start) / size > 10_000):
        raise ValueError(f"'{text}' is not valid: the range must ascend in at most 10000 steps; expected {form}")
    found, value = list[float](), start
    while value <= end * (1 + 1e-9):
        found.append(value)
        value = value * size if multiplies else start + size * len(found)
    return tuple(found)


def parse_ramp(text: str, duration_s: float | None = None) -> RateCurve:
    """Return the curve of START:END, over `duration_s` seconds, or of START:END:TIME. Raises ValueError."""
    form = "START:END:TIME in requests per second, such as 10:200:30s"
    parts = text.split(":")
    if len(parts) == 2 and duration_s is None:
        raise ValueError(f"'{text}' needs a time; expected {form}")
    if len(parts) not in (2, 3):
        raise ValueError(f"'{text}' is not a valid ramp; expected {form}")
    over_s = parse_duration(parts[2]) if len(parts) == 3 else duration_s
    start, end = _rate(parts[0], text, form, minimum=0), _rate(parts[1], text, form, minimum=0)
    return ramp(start, end, over_s or 0.0)


def parse_burst(text: str) -> RateCurve:
    """Return the curve of BASE:BURST:ON/PERIOD, such as 50:500:2s/10s. Raises ValueError."""
    form = "BASE:BURST:ON/PERIOD, such as 50:500:2s/10s: 500/s for 2 s of every 10 s, 50/s in between"
    parts = text.split(":")
    on, slash, period = parts[2].partition("/") if len(parts) == 3 else ("", "", "")
    if not slash:
        raise ValueError(f"'{text}' is not a valid burst; expected {form}")
    base, burst = _rate(parts[0], text, form, minimum=0), _rate(parts[1], text, form, minimum=0)
    return bursts(base, burst, parse_duration(on), parse_duration(period))


def _rate(text: str, whole: str, form: str, minimum: float = 1e-6) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not minimum <= value <= MAX_RATE:
        raise ValueError(f"'{whole}' is not valid: '{text.strip()}' is not a rate; expected {form}")
    return value
