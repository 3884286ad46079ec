import pytest

from conch.measure.bench.levels import SloSearch


def _found(search: SloSearch, limit: float) -> tuple[float | None, int]:
    """Search a server that meets the SLOs up to `limit`; return the level found and the number of measurements."""
    tried: dict[float, bool] = {}
    while (level := search.next_level(tried)) is not None:
        assert level not in tried
        tried[level] = level <= limit
    return search.best(tried), len(tried)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 30, 31, 32, 33, 100, 1000])
def test_the_highest_concurrency_is_found_within_5_percent(limit: int) -> None:
    best, measurements = _found(SloSearch(), limit)
    assert best is not None
    assert best <= limit <= best * 1.05 + 1
    assert measurements <= 20


def test_rates_are_not_rounded() -> None:
    best, _ = _found(SloSearch(1.0, 1e6, integers=False), 123.4)
    assert best is not None
    assert 123.4 / 1.05 <= best <= 123.4


def test_nothing_is_found_if_the_lowest_level_fails() -> None:
    assert _found(SloSearch(), 0.5) == (None, 1)


def test_the_search_ends_at_the_highest_level() -> None:
    assert _found(SloSearch(highest=64), 1000) == (64, 7)


def test_a_level_above_one_that_failed_does_not_count() -> None:
    assert SloSearch().best({1: True, 2: False, 4: True}) == 1
