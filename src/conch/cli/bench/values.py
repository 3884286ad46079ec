"""The kinds of values of flags of `conch bench`."""

import re
from argparse import ArgumentTypeError

from conch.bench.durations import parse_duration
from conch.bench.measuring_window import Precision

_PRECISION = re.compile(r"\s*p(\d+(?:\.\d+)?)\s*(?:±|\+-|\+/-)\s*(\d+(?:\.\d+)?)\s*%\s*")
_SLO_NAMES = ("ttft", "itl", "latency")
_MAX_LEVELS = 1000


def fraction(text: str) -> float:
    """Parse 0.99 or 99%."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if 0 < value <= 1:
        return value
    raise ArgumentTypeError(f"'{text}' is not a share: expected 99% or 0.99")


def concurrencies(text: str) -> tuple[int, ...]:
    """Parse 1,5,30 or START:END, START:END:STEP, START:END:xFACTOR."""
    try:
        values = tuple(_range(text) if ":" in text else (int(part) for part in text.split(",")))
    except ValueError:
        values = ()
    if values and all(value > 0 for value in values):
        return values
    raise ArgumentTypeError(f"'{text}' is not a list of concurrencies: expected 1,5,30 or 1:32:x2 or 1:10:1")


def _range(text: str) -> list[int]:
    parts = text.split(":")
    if len(parts) > 3:
        raise ValueError(text)
    start, end = int(parts[0]), int(parts[1])
    step = parts[2] if len(parts) == 3 else "1"
    factor = int(step[1:]) if step.startswith("x") else 0
    if start < 1 or end < start or (factor < 2 if factor or step.startswith("x") else int(step) < 1):
        raise ValueError(text)
    values = [start]
    while (following := values[-1] * factor if factor else values[-1] + int(step)) <= end:
        values.append(following)
        if len(values) > _MAX_LEVELS:
            raise ValueError(text)
    return values


def rate_list(text: str) -> str:
    """Check for a list or range of rates; it is read by `conch.bench.arrivals.words`, which needs numpy."""
    if re.fullmatch(r"[0-9.]+(,[0-9.]+)*|[0-9.]+:[0-9.]+(:x?[0-9.]+)?", text):
        return text
    raise ArgumentTypeError(f"'{text}' is not a list of rates: expected 100,200 or 100:400:50 or 100:1600:x2")


def slo(text: str) -> dict[str, float]:
    """Parse ttft:200ms,itl:30ms,latency:1s to seconds."""
    targets = {}
    for part in text.split(","):
        name, colon, time = part.partition(":")
        if not colon or name.strip() not in _SLO_NAMES:
            raise ArgumentTypeError(f"'{part}' is not a target: expected ttft:200ms, itl:30ms or latency:1s")
        targets[name.strip()] = duration(time)
    return targets


def precision(text: str) -> Precision:
    """Parse 'p99 ±5%'."""
    found = _PRECISION.fullmatch(text)
    if found and 0 < float(found[1]) < 100 and 0 < float(found[2]) < 100:
        return Precision(float(found[1]), float(found[2]) / 100)
    raise ArgumentTypeError(f"'{text}' is not a rule: expected a percentile and a width, such as 'p99 ±5%'")


def warm_up(text: str) -> float | None:
    """Parse auto (None) or a time."""
    return None if text == "auto" else duration(text)


def amount(text: str) -> tuple[int, int]:
    """Parse N, or N±S or N±S% for numbers evenly distributed in between, to mean and spread."""
    number, sign, spread = text.replace("+-", "±").partition("±")
    if number.isdecimal() and int(number) > 0 and (spread.removesuffix("%").isdecimal() if sign else True):
        mean, width = int(number), int(spread.removesuffix("%") or 0)
        width = round(mean * width / 100) if spread.endswith("%") else width
        if width < mean:
            return mean, width
    raise ArgumentTypeError(f"'{text}' is not an amount: expected 128, or 128±32 for numbers from 96 to 160")


def duration(text: str) -> float:
    """Parse a time such as 500us, 30s or 3m to seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
