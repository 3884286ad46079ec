"""Durations as text: 500us, 30s, 3m, 1h30m, also as Prometheus writes them: 1d12h."""

import re

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ns|us|µs|ms|s|m|h)")

_PROMETHEUS = re.compile("".join(rf"(?:([0-9]+){unit})?" for unit in ("y", "w", "d", "h", "m", "s", "ms")))
_PROMETHEUS_UNITS_MS = (365 * 86_400_000, 7 * 86_400_000, 86_400_000, 3_600_000, 60_000, 1000, 1)
_MAX_PROMETHEUS_S = (2**63 - 1) / 1e9  # of Go's time.Duration


def parse_duration(text: str) -> float:
    """Return the seconds of a duration. Raises ValueError, also for a number other than 0 without a unit."""
    stripped = text.strip()
    if re.fullmatch(r"\d+(\.\d*)?|\.\d+", stripped):
        if not float(stripped):
            return 0.0
        raise ValueError(f"'{text}' is not a valid duration: it needs a unit, such as {stripped}s or {stripped}ms")
    if not stripped or _PART.sub("", stripped).strip():
        raise ValueError(f"'{text}' is not a valid duration; expected a form such as 500us, 200ms, 30s, 3m or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(stripped))


def parse_prometheus_duration(text: str) -> float:
    """Return the seconds of a duration in a file of Prometheus, such as 1h30m or 0m. Raises ValueError.

    These files allow zero, which queries refuse, and numbers without a unit only if they are zero.
    """
    parts = _PROMETHEUS.fullmatch(text)
    if text == "0":
        return 0.0
    if not text or parts is None:
        raise ValueError(f"not a valid duration: {text}")
    seconds = sum(int(part or 0) * unit for part, unit in zip(parts.groups(), _PROMETHEUS_UNITS_MS, strict=True)) / 1000
    if seconds > _MAX_PROMETHEUS_S:
        raise ValueError(f"duration out of range: {text}")
    return seconds


def duration_text(seconds: float) -> str:
    """Return a time with three digits and a fitting unit, such as 12.3 ms."""
    size = abs(seconds)
    for bound, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if size < bound * 0.9995:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{_three_digits(seconds)} s"


def _three_digits(value: float) -> str:
    size = abs(value)
    return f"{value:.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f}"
