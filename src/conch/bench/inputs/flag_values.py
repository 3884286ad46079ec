"""Parse the values of the flags that describe inputs. For argparse: raises ArgumentTypeError."""

import re
from argparse import ArgumentTypeError

from conch.bench.inputs.settings import Amount, Cancellation

_AMOUNT = re.compile(r"(\d+)(?:\s*(?:±|\+-|\+/-)\s*(\d+)(%?))?")
_CANCEL = re.compile(r"(\d+(?:\.\d+)?)%(?:@(\d+(?:\.\d+)?)(us|ms|s|m)?)?")
_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}
_DIMENSION = re.compile(r"\d+(?:,\d+)*")


def parse_amount(text: str) -> Amount:
    """Parse `N`, `N±M` or `N±P%`; `+-` may stand for ±."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or int(match[1]) < 1:
        raise ArgumentTypeError(f"'{text}' is not a number such as 500, 500±50 or 500±10%")
    mean, spread = int(match[1]), int(match[2] or 0)
    if match[3]:
        spread = round(mean * spread / 100)
    if spread >= mean:
        raise ArgumentTypeError(f"'{text}': the spread must be less than {mean}")
    return Amount(mean, spread)


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse `NAME:1,3,224,224`. The name may contain colons."""
    name, _, dims = text.rpartition(":")
    if not name or not _DIMENSION.fullmatch(dims):
        raise ArgumentTypeError(f"'{text}' is not an input with its dimensions, such as image:3,224,224")
    return name, tuple(map(int, dims.split(",")))


def parse_range(text: str) -> tuple[str, tuple[float, float]]:
    """Parse `NAME:low,high`."""
    name, _, limits = text.rpartition(":")
    try:
        low, high = map(float, limits.split(","))
    except ValueError:
        low, high = 1.0, 0.0
    if not name or low > high:
        raise ArgumentTypeError(f"'{text}' is not an input with its lowest and highest value, such as image:0,255")
    return name, (low, high)


def parse_cancel(text: str) -> Cancellation:
    """Parse `10%@200ms` (after a time) or `10%@3` (after 3 responses or content chunks)."""
    match = _CANCEL.fullmatch(text.strip())
    if match is None or match[2] is None or not 0 < float(match[1]) <= 100:
        raise ArgumentTypeError(f"'{text}' is not a share and a time, such as 10%@200ms, or 10%@3 for 3 responses")
    share = float(match[1]) / 100
    if match[3]:
        return Cancellation(share, after_ms=max(1, round(float(match[2]) * _MS[match[3]])))
    if not match[2].isdigit() or int(match[2]) < 1:
        raise ArgumentTypeError(f"'{text}': {match[2]} is not a number of responses; times have a unit (200ms)")
    return Cancellation(share, after_responses=int(match[2]))
