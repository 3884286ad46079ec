"""Traces of one number a line: times of requests, or perf_analyzer's intervals between them."""

import numpy as np
from numpy.typing import NDArray

from conch.domain.load_traces.columns import MAX_REQUESTS, TraceError
from conch.domain.load_traces.load_trace import LoadTrace

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
EXPECTED = "one time a line, in s, ms, µs or ns since 1970 or since the start"
# What the present time is in each unit since 1970, to a factor of ten.
_EPOCHS = (("s", 3e8, 1e11), ("ms", 1e11, 1e14), ("us", 1e14, 1e17), ("ns", 1e17, 1e20))


def read_timestamps(name: str, text: str, unit: str | None) -> LoadTrace:
    """Return the trace of times in a unit; None: detected.

    Times since 1970 show their unit by their size. Others with a decimal point are seconds; those without one are
    ambiguous, and refused. Raises TraceError.
    """
    has_fraction = "." in text
    if unit is None:
        unit = _unit_of(name, float(_numbers(name, text, integers=False)[0]), has_fraction=has_fraction)
    # Nanoseconds since 1970 have more digits than a float, and differences are what counts.
    found = _numbers(name, text, integers=unit == "ns" and not has_fraction)
    times = np.sort(found)
    return LoadTrace(name, (times - times[0]).astype(np.float64) * UNITS[unit])


def read_intervals(name: str, text: str) -> LoadTrace:
    """Return the trace of perf_analyzer's `--request-intervals`: µs between requests. Raises TraceError."""
    gaps = _numbers(name, text, integers=False)
    negative = np.flatnonzero(gaps < 0)
    if len(negative):
        raise TraceError(f"{name}: interval {negative[0] + 1} is negative: {gaps[negative[0]]:g}")
    return LoadTrace(name, (np.cumsum(gaps) - gaps[0]) * 1e-6)


def _unit_of(name: str, first: float, *, has_fraction: bool) -> str:
    for unit, low, high in _EPOCHS:
        if low <= first < high:
            return unit
    if has_fraction:
        return "s"
    raise TraceError(f"{name}: the unit of its times is ambiguous; name it, as in ms:{name} (s, ms, us or ns)")


def _numbers(name: str, text: str, *, integers: bool) -> NDArray[np.float64]:
    """Return the numbers; those of `integers` are exact in 64 bits."""
    kind = np.int64 if integers else np.float64
    try:
        found: NDArray[np.float64] = np.array(text.split(), dtype=kind)
    except (ValueError, OverflowError):
        found = np.array(_numbers_of_lines(name, text, integers=integers), dtype=kind)
    if not len(found):
        raise TraceError(f"{name}: no request found; expected {EXPECTED}")
    if len(found) > MAX_REQUESTS:
        raise TraceError(f"{name}: more than {MAX_REQUESTS:,} requests; cut the file")
    if not np.isfinite(found).all():
        raise TraceError(f"{name}: a time is not finite; expected {EXPECTED}")
    return found


def _numbers_of_lines(name: str, text: str, *, integers: bool) -> list[float]:
    """Read line by line, with comments from # on, for the line of an error."""
    read = int if integers else float
    found = list[float]()
    for number, line in enumerate(text.splitlines(), 1):
        value = line.partition("#")[0].strip()
        if not value:
            continue
        try:
            found.append(read(value))
        except ValueError:
            raise TraceError(f"{name}: line {number} is not a number: '{value[:40]}'; expected {EXPECTED}") from None
    return found
