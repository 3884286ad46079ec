from collections.abc import Callable

import pytest

from conch.base.durations import duration_text, parse_duration
from conch.domain.arrivals.arrival_times import ArrivalProcess
from conch.domain.arrivals.rate_curve import bursts, ramp
from conch.domain.arrivals.words import parse_arrivals, parse_burst, parse_ramp, parse_rates


def test_words_of_the_command_line() -> None:
    assert parse_arrivals("constant") == (ArrivalProcess.CONSTANT, 0)
    assert parse_arrivals("poisson") == (ArrivalProcess.POISSON, 1)
    assert parse_arrivals("gamma:2.5") == (ArrivalProcess.GAMMA, 2.5)
    assert parse_rates("100,200.5") == (100, 200.5)
    assert parse_rates("100:300:100") == (100, 200, 300)
    assert parse_rates("1:32:x2") == (1, 2, 4, 8, 16, 32)
    assert parse_rates("1:3") == (1, 2, 3)
    assert parse_ramp("10:200:30s") == ramp(10, 200, 30)
    assert parse_ramp("0:200", 60) == ramp(0, 200, 60)
    assert parse_burst("50:500:2s/10s") == bursts(50, 500, 2, 10)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse_arrivals, text) for text in ("", "gamma", "gamma:x", "gamma:-1", "poisson:1", "gamma:1000")),
        *((parse_rates, text) for text in ("", "x", "0", "-1", "1:2:3:4", "5:1", "1:9:x1", "1e9", "1:1e6:0.01", "nan")),
        *((parse_ramp, text) for text in ("1", "1:2", "1:2:3:4", "a:2:3s", "1:2:3x", "0:0:1s")),
        *((parse_burst, text) for text in ("1:2", "1:2:3s", "1:2:5s/3s", "1:2:x/3s", "1:2:0s/3s")),
        *((parse_duration, text) for text in ("", "x", "1d", "-1s", "1s x", "s", "10", "2.5")),
    ],
)
def test_bad_words_are_refused(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=r"valid|must|needs"):
        parse(text)


def test_durations() -> None:
    assert [
        parse_duration(text) for text in ("500us", "30s", "3m", "1h30m", "2.5s", "10 ms", "1µs", "0")
    ] == pytest.approx([5e-4, 30, 180, 5400, 2.5, 1e-2, 1e-6, 0])
    assert [duration_text(each) for each in (0, 1.5e-6, 0.0123, 0.99999, 1.5, 123.4)] == [
        "0.00 µs",
        "1.50 µs",
        "12.3 ms",
        "1.00 s",
        "1.50 s",
        "123 s",
    ]
