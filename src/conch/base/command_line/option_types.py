"""Types of options of argparse: numbers, times, targets, names of Kubernetes. All raise ArgumentTypeError."""

import re
from argparse import ArgumentTypeError
from collections.abc import Sequence

from conch.base.durations import parse_duration

_MAX_USERS = 100_000
_SLO_NAMES = ("ttft", "itl", "latency")
_MAX_PORT = 65535
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_MAX_NAME = 253  # characters


def fraction(text: str) -> float:
    """Parse 0.99 or 99%."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if 0 < value <= 1:
        return value
    raise ArgumentTypeError(f"'{text}' is not a share: expected 99% or 0.99")


def percentile(text: str) -> float:
    """Parse 99.9, or p99.9."""
    try:
        value = float(text.removeprefix("p"))
    except ValueError:
        value = -1.0
    if 0 < value < 100:
        return value
    raise ArgumentTypeError(f"'{text}' is not a percentile: expected a number between 0 and 100, such as 99.9")


def natural(text: str) -> int:
    """Parse a number of 0 or more."""
    if text.isdecimal():
        return int(text)
    raise ArgumentTypeError(f"'{text}' is not a number of 0 or more")


def ratio(text: str) -> float:
    """Parse a ratio of 0 or more, such as 0.001."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0 <= value < float("inf"):
        return value
    raise ArgumentTypeError(f"'{text}' is not a ratio: expected a number of 0 or more, such as 0.001")


def concurrencies(text: str) -> tuple[int, ...]:
    """Parse 1,5,30 or START:END, START:END:STEP, START:END:xFACTOR."""
    try:
        values = tuple(_range(text) if ":" in text else (int(part) for part in text.split(",")))
    except ValueError:
        values = ()
    if values and min(values) > 0:
        return values
    raise ArgumentTypeError(f"'{text}' is not a list of concurrencies: expected 1,5,30 or 1:32:x2 or 1:10:1")


def _range(text: str) -> Sequence[int]:
    parts = text.split(":")
    if len(parts) > 3:
        raise ValueError(text)
    start, end = int(parts[0]), int(parts[1])
    step = parts[2] if len(parts) == 3 else "1"
    factor = int(step[1:]) if step.startswith("x") else 0
    if start < 1 or end < start or (factor < 2 if factor or step.startswith("x") else int(step) < 1):
        raise ValueError(text)
    if not factor:
        if end - start > _MAX_USERS:
            raise ValueError(text)
        return range(start, end + 1, int(step))
    values = [start]
    while values[-1] * factor <= end:
        values.append(values[-1] * factor)
    return values


def rate_list(text: str) -> str:
    """Check for a list or range of rates; it is read by `conch.domain.arrivals`, which needs numpy."""
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


def count(text: str) -> int:
    """Return a whole number above 0. Raises ArgumentTypeError."""
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text)
    raise ArgumentTypeError(f"'{text}' is not a whole number above 0")


def port(text: str) -> int:
    """Return the number of a port. Raises ArgumentTypeError."""
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= _MAX_PORT:
        return int(text)
    raise ArgumentTypeError(f"'{text}' is not a valid port")


def port_or_any(text: str) -> int:
    """Return the number of a port, or 0 for any free one. Raises ArgumentTypeError."""
    return 0 if text == "0" else port(text)


def object_name(text: str) -> str:
    """Return the name of an object. Raises ArgumentTypeError."""
    if len(text) > _MAX_NAME or not _SUBDOMAIN.fullmatch(text):
        raise ArgumentTypeError(f"'{text}' is not a valid name; use lower-case letters, digits, - and ., e.g. conch-a")
    return text


def namespace(text: str) -> str:
    """Return the name of a namespace. Raises ArgumentTypeError."""
    if not _NAMESPACE.fullmatch(text):
        message = f"'{text}' is not a valid namespace; use at most 63 lower-case letters, digits and -, e.g. monitoring"
        raise ArgumentTypeError(message)
    return text


def label(text: str) -> tuple[str, str]:
    """Return the name and the value of a label. Raises ArgumentTypeError."""
    name, equals, value = text.partition("=")
    if not equals or not _LABEL.fullmatch(name) or not _LABEL_VALUE.fullmatch(value):
        raise ArgumentTypeError(f"'{text}' is not a valid label NAME=VALUE, e.g. release=kps")
    return name, value
