"""Quantities of Kubernetes, such as 500m, 2, 4Gi, and the integers in thousandths in which autoscalers count."""

import re
from math import ceil

_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]+)?")
_DECIMAL = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_MAX = 2**63 - 1


def parse_quantity(value: object) -> float | None:
    """Return the number of a quantity, or None if it is not valid."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, suffix = match.groups()
    if suffix in _DECIMAL or suffix in _BINARY:
        return float(number) * (_DECIMAL.get(suffix) or _BINARY[suffix])
    return float(number + (suffix or ""))


def milli(number: float) -> int:
    """Return thousandths, rounded up as Kubernetes does, at most the largest 64-bit integer."""
    scaled = number * 1000
    if abs(scaled) >= _MAX:
        return _MAX if scaled > 0 else -_MAX
    nearest = round(scaled)
    # A number such as 0.3 is not exact in binary: 300.00000000000006 means 300.
    return nearest if abs(scaled - nearest) < 1e-6 else ceil(scaled)


def format_quantity(number: float) -> str:
    """Return the shortest quantity of a number in thousandths: 1500m, 2."""
    thousandths = milli(number)
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"
