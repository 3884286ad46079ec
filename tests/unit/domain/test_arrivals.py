"""Rates that change over time, arrivals at them, and their words."""

from collections.abc import Callable

import numpy as np
import pytest

from conch.base.durations import duration_text, parse_duration
from conch.domain.arrivals import (
    ArrivalProcess,
    Arrivals,
    RateCurve,
    RateSegment,
    arrival_times,
    bursts,
    parse_arrivals,
    parse_burst,
    parse_ramp,
    parse_rates,
    ramp,
    steady,
    steps,
)


def draw(arrivals: Arrivals, duration_s: float, seed: int = 0) -> np.ndarray:
    return arrival_times(arrivals, duration_s, np.random.default_rng(seed))


def test_constant_arrivals_are_evenly_spaced() -> None:
    times = draw(Arrivals(steady(4), ArrivalProcess.CONSTANT), 2.0)
    assert times.tolist() == [0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]


@pytest.mark.parametrize(
    ("process", "cv"), [(ArrivalProcess.POISSON, 1.0), (ArrivalProcess.GAMMA, 0.3), (ArrivalProcess.GAMMA, 3.0)]
)
def test_gaps_have_the_mean_and_the_variation_asked_for(process: ArrivalProcess, cv: float) -> None:
    times = draw(Arrivals(steady(1000), process, cv), 200.0)
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(1e-3, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)
    assert (gaps >= 0).all()
    assert times[-1] < 200


def test_poisson_counts_are_poisson() -> None:
    counts = np.histogram(draw(Arrivals(steady(100)), 1000.0), 1000, (0, 1000))[0]
    assert counts.var() / counts.mean() == pytest.approx(1, rel=0.15)


def test_the_same_seed_gives_the_same_times() -> None:
    arrivals = Arrivals(steady(100), ArrivalProcess.GAMMA, 2.0)
    assert np.array_equal(draw(arrivals, 10, 7), draw(arrivals, 10, 7))
    assert not np.array_equal(draw(arrivals, 10, 7)[:50], draw(arrivals, 10, 8)[:50])


def test_a_ramp_changes_the_rate_linearly_and_holds_the_end() -> None:
    times = draw(Arrivals(ramp(0, 100, 10), ArrivalProcess.CONSTANT), 20.0)
    counts = np.histogram(times, 20, (0, 20))[0]
    assert counts[:10] == pytest.approx(np.arange(5, 100, 10), abs=1)
    assert counts[10:] == pytest.approx(np.full(10, 100), abs=1)
    falling = draw(Arrivals(ramp(100, 0, 10), ArrivalProcess.CONSTANT), 20.0)
    assert len(falling) == 500
    assert falling[-1] < 10


def test_bursts_repeat() -> None:
    times = draw(Arrivals(bursts(0, 50, 1, 4), ArrivalProcess.CONSTANT), 10.0)
    assert np.histogram(times, 10, (0, 10))[0].tolist() == [0, 0, 0, 50, 0, 0, 0, 50, 0, 0]


def test_steps_hold_their_rates() -> None:
    times = draw(Arrivals(steps([(10, 2), (30, 1)]), ArrivalProcess.CONSTANT), 4.0)
    assert np.histogram(times, 4, (0, 4))[0].tolist() == [10, 10, 30, 30]


def test_a_segment_that_is_cut_keeps_its_slope() -> None:
    assert ramp(0, 100, 10).mean_rate(5) == 25
    assert len(draw(Arrivals(ramp(0, 100, 10), ArrivalProcess.CONSTANT), 5.0)) == 125


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 1,000"):
        arrival_times(Arrivals(steady(101)), 10, np.random.default_rng(0), max_arrivals=1000)
    with pytest.raises(ValueError, match="greater than 0 s"):
        draw(Arrivals(steady(1)), 0)
    with pytest.raises(ValueError, match="greater than 0 at some time"):
        steady(0)
    with pytest.raises(ValueError, match="must not be negative"):
        steady(-1)
    with pytest.raises(ValueError, match="shorter than its period"):
        bursts(1, 2, 5, 5)
    with pytest.raises(ValueError, match="at least one segment"):
        RateCurve(())
    with pytest.raises(ValueError, match="must last longer"):
        RateSegment(0, 1, 1)
    with pytest.raises(ValueError, match="coefficient of variation"):
        Arrivals(steady(1), ArrivalProcess.GAMMA, -1)


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
    assert [duration_text(seconds) for seconds in (0, 1.5e-6, 0.0123, 0.99999, 1.5, 123.4)] == [
        "0.00 µs",
        "1.50 µs",
        "12.3 ms",
        "1.00 s",
        "1.50 s",
        "123 s",
    ]
