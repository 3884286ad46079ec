"""The header X-Request-Deadline: durations, times, clocks that differ, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import InvalidRequest
from conch.protocols.http.deadlines import Deadlines, read_deadlines

CLOCK_S = 1_795_489_200.0  # 2026-11-24T03:00:00Z
MS = 1_000_000


@pytest.mark.parametrize(
    ("value", "end_ms", "first_token_ms"),
    [
        (b"250ms", 250, None),
        (b"1.5s", 1500, None),
        (b"1m30s", 90_000, None),
        (b"500us", 0.5, None),
        (b"0", 0, None),
        (b"24h", 86_400_000, None),
        (b"2026-11-24T03:00:00.250Z", 250, None),
        (b"2026-11-24T04:00:00.250+01:00", 250, None),
        (b"2026-11-24T02:59:59Z", -1000, None),
        (b"1970-01-01T00:00:00Z", -86_400_000, None),
        (b"30s; first-token=500ms", 30_000, 500),
        (b"first-token=2026-11-24T03:00:00.5Z", None, 500),
        (b" First-Token = 1s ;2s ", 2000, 1000),
    ],
)
def test_deadlines(value: bytes, end_ms: float, first_token_ms: float | None) -> None:
    assert read_deadlines(value, CLOCK_S) == Deadlines(
        None if end_ms is None else int(end_ms * MS), None if first_token_ms is None else int(first_token_ms * MS)
    )


@pytest.mark.parametrize("skew_s", [-1e6, -3600.0, 0.0, 3600.0, 1e6])
def test_with_the_clock_of_the_client_the_clocks_need_not_agree(skew_s: float) -> None:
    value = b"2026-11-24T03:00:00.250Z; now=2026-11-24T03:00:00Z"
    assert read_deadlines(value, CLOCK_S + skew_s) == Deadlines(250 * MS, None)


def test_a_clock_that_differs_is_named_where_it_shows() -> None:
    with pytest.raises(InvalidRequest, match="more than 24 h ahead; for a time, the clocks of client and server may"):
        read_deadlines(b"2026-11-24T03:00:00Z", CLOCK_S - 1e6)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"", "'' is not a valid duration"),
        (b"250", "needs a unit, such as 250s or 250ms"),
        (b"-5ms", "is not a valid duration"),
        (b"nan", "is not a valid duration"),
        (b"inf", "is not a valid duration"),
        (b"1e3s", "is not a valid duration"),
        (b"25h", "more than 24 h ahead"),
        (b"9" * 100 + b"s", "more than 24 h ahead"),
        (b"9" * 200 + b"s", "128 characters at most, got 201"),
        (b"2026-11-24T03:00:00", "is not a time with a time zone"),
        (b"2026-13-24T03:00:00Z", "is not a time with a time zone"),
        (b"1s; 2s", "once, got '2s'"),
        (b"1s; speed=2", "once, got 'speed=2'"),
        (b"now=2026-11-24T03:00:00Z", "has no deadline"),
        (b"1s; now=yesterday", "'yesterday' is not a time"),
        (b"\xff", "is not a valid duration"),
    ],
)
def test_what_is_not_a_deadline_is_refused(value: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        read_deadlines(value, CLOCK_S)


@given(st.binary(max_size=140) | st.from_regex(r"[0-9T:;=.nows -]{0,60}", fullmatch=True).map(str.encode))
def test_any_bytes_are_a_deadline_or_refused(value: bytes) -> None:
    try:
        deadlines = read_deadlines(value, CLOCK_S)
    except InvalidRequest:
        return
    assert deadlines.end is not None or deadlines.first_token is not None
