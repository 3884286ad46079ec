"""The sliding second, against a list of all times."""

import random

import pytest

from conch.server.limits.limiter import PEAK_HOLD_NS, SLOT_NS, WINDOW_NS, RateWindow

SECOND = WINDOW_NS


@pytest.mark.parametrize("seed", range(8))
def test_the_total_is_that_of_the_last_second(seed: int) -> None:
    chance = random.Random(seed)
    now = chance.randrange(10**15)
    window = RateWindow(now)
    times: list[tuple[int, int]] = []
    for _ in range(1000):
        now += chance.choice([0, 1, 999, SLOT_NS, chance.randrange(SECOND // 50), chance.randrange(2 * SECOND)])
        window.advance(now)
        count = chance.randrange(1, 5)
        window.add(count)
        times.append((now, count))
        exact = sum(moment for time, moment in times if time > now - SECOND)
        longer = sum(moment for time, moment in times if time >= now - SECOND - 2 * SLOT_NS)
        assert exact <= window.total <= longer


def test_no_second_has_more_than_the_limit_and_a_steady_load_reaches_it() -> None:
    window, limit, admitted = RateWindow(0), 80, []
    for now in range(0, 20 * SECOND, SECOND // 977):
        if window.advance(now) + 1 <= limit:
            window.add(1)
            admitted.append(now)
    for index, time in enumerate(admitted[limit:]):
        assert time - admitted[index] > SECOND
    assert len(admitted) >= 0.98 * 20 * limit


def test_a_burst_up_to_the_limit_is_admitted_and_the_wait_for_room_is_known() -> None:
    window = RateWindow(5 * SECOND)
    window.advance(5 * SECOND)
    window.add(10)
    window.advance(5 * SECOND + SECOND // 2)
    window.add(10)
    now = 5 * SECOND + SECOND // 2
    assert window.wait_for(1, 20) == pytest.approx(SECOND / 2, abs=2 * SLOT_NS)
    assert window.wait_for(11, 20) == pytest.approx(SECOND, abs=2 * SLOT_NS)
    assert window.advance(now + window.wait_for(1, 20)) == 10
    assert window.advance(now + SECOND + 2 * SLOT_NS) == 0


def test_a_time_before_the_last_one_counts_as_that() -> None:
    window = RateWindow(SECOND)
    window.advance(2 * SECOND)
    window.add(3)
    assert window.advance(SECOND) == 3
    window.add(1)
    assert window.advance(2 * SECOND) == 4


@pytest.mark.parametrize("interval_s", [1, 15, 60, 300])
@pytest.mark.parametrize("offset", [0.01, 0.5, 0.9])
def test_two_scrapers_see_every_burst(interval_s: int, offset: float) -> None:
    interval = interval_s * SECOND
    for burst in range(3, 40):
        window = RateWindow(0)
        at = 3 * interval + burst * interval // 40
        seen = {0: 0, 1: 0}
        scrapes = sorted(
            (round((round_ + scraper * offset) * interval), scraper) for round_ in range(12) for scraper in (0, 1)
        )
        for time, scraper in scrapes:
            if at < time and window.total == 0 and seen == {0: 0, 1: 0}:
                window.advance(at)
                window.add(500)
            seen[scraper] = max(seen[scraper], window.take_peak(time))
        assert seen == {0: 500, 1: 500}


def test_an_old_peak_is_forgotten() -> None:
    window = RateWindow(0)
    window.advance(1)
    window.add(7)
    peaks = [window.take_peak(time) for time in range(SECOND, 4 * PEAK_HOLD_NS, PEAK_HOLD_NS // 2)]
    assert peaks[0] == 7
    assert peaks[-1] == 0
