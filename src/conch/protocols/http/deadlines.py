"""The header `X-Request-Deadline`: until when a response is of use to the client.

    X-Request-Deadline: 250ms                                           from the arrival of the request
    X-Request-Deadline: 2026-11-24T03:00:00.250Z                        a time of the server's clock
    X-Request-Deadline: 2026-11-24T03:00:00.250Z; now=2026-11-24T03:00:00Z
    X-Request-Deadline: 30s; first-token=500ms

`now` is the client's clock when it sends the request: with it, clocks need not agree. `first-token` is until when a
language model has to begin its answer.
"""

from datetime import datetime
from time import time
from typing import Final, NamedTuple

from conch.base.durations import parse_duration
from conch.base.errors import InvalidRequest
from conch.domain.request import Timeline

DEADLINE: Final = b"x-request-deadline"
MAX_S: Final = 86_400.0
_MAX_LENGTH: Final = 128
_FIRST_TOKEN, _NOW = "first-token", "now"


class Deadlines(NamedTuple):
    """Nanoseconds from the arrival of the request, negative where the time has passed; None for no deadline."""

    end: int | None
    first_token: int | None


def set_deadlines(timeline: Timeline, value: bytes) -> None:
    """Set the deadlines of a request that has the header; an earlier one that is set stays. Raises InvalidRequest."""
    deadlines = read_deadlines(value, time())
    if deadlines.end is not None:
        end = timeline.received + deadlines.end
        timeline.deadline = min(timeline.deadline or end, end)
    if deadlines.first_token is not None:
        timeline.first_token_by = timeline.received + deadlines.first_token


def read_deadlines(value: bytes, clock_s: float) -> Deadlines:
    """Read the header. `clock_s` is the server's clock, seconds since the epoch. Raises InvalidRequest."""
    text = value.decode("latin-1")
    if len(text) > _MAX_LENGTH:
        raise InvalidRequest(f"X-Request-Deadline may have {_MAX_LENGTH} characters at most, got {len(text)}")
    parts = {}
    for part in text.split(";"):
        name, equals, rest = part.partition("=")
        key = name.strip().lower() if equals else ""
        if key in parts or (equals and key not in (_FIRST_TOKEN, _NOW)):
            expected = "expected a deadline, and first-token=… or now=… once"
            raise InvalidRequest(f"X-Request-Deadline '{text}': {expected}, got '{part.strip()}'")
        parts[key] = (rest if equals else part).strip()
    now = _time(parts[_NOW], text) if _NOW in parts else clock_s
    end = _remaining_ns(parts[""], now, text) if "" in parts else None
    first = _remaining_ns(parts[_FIRST_TOKEN], now, text) if _FIRST_TOKEN in parts else None
    if end is None and first is None:
        raise InvalidRequest(f"X-Request-Deadline '{text}' has no deadline")
    return Deadlines(end, first)


def _remaining_ns(text: str, now: float, whole: str) -> int:
    if "T" in text or "t" in text:
        seconds = _time(text, whole) - now
    else:
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise InvalidRequest(f"X-Request-Deadline {error}, or a time such as 2026-11-24T03:00:00.250Z") from None
    if seconds > MAX_S:
        hint = "; for a time, the clocks of client and server may differ: send now=… too" if "T" in text else ""
        raise InvalidRequest(f"X-Request-Deadline '{whole}' is more than 24 h ahead{hint}")
    return int(max(seconds, -MAX_S) * 1e9)


def _time(text: str, whole: str) -> float:
    try:
        deadline = datetime.fromisoformat(text)
    except ValueError:
        deadline = None
    if deadline is None or deadline.tzinfo is None:
        raise InvalidRequest(
            f"X-Request-Deadline '{whole}': '{text}' is not a time with a time zone, such as 2026-11-24T03:00:00.250Z"
        )
    return deadline.timestamp()
