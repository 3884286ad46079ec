import pytest

from conch.base.pacing import MinimumRate, TokenBucket, backoff_s


def test_the_delay_doubles_to_its_maximum() -> None:
    assert [backoff_s(failures, 1.0, 300.0) for failures in (0, 1, 2, 3, 9, 10, 5000)] == [0, 1, 2, 4, 256, 300, 300]
    assert [backoff_s(failures, 1.0, 8.0) for failures in range(1, 6)] == [1, 2, 4, 8, 8]
    assert backoff_s(1, 8.0, 8.0) == 8


def test_jitter_halves_the_delay_at_most() -> None:
    assert backoff_s(1, 1.0, 8.0, jitter=1.0) == 0.5
    assert backoff_s(3, 1.0, 300.0, jitter=0.999) == pytest.approx(2, abs=0.01)


def test_a_token_bucket_allows_a_burst_and_then_the_rate() -> None:
    bucket = TokenBucket(2, 1.0, 100.0)
    for _ in range(2):
        assert bucket.delay_s(100.0) == 0
        bucket.take(100.0, 1)
    assert bucket.delay_s(100.0) == pytest.approx(1)
    assert bucket.delay_s(101.0) == pytest.approx(0)


def test_a_minimum_rate_counts_the_time_of_waiting():
    rate = MinimumRate(100.0, 10.0)
    assert [rate.shortfall(1, 1.0) for _ in range(9)] == [""] * 9
    assert rate.shortfall(1, 1.0) == "too slow: 10 bytes in 10 s, the minimum is 100 bytes a second"
    assert [rate.shortfall(1000, 5.0), rate.shortfall(0, 5.0)] == ["", ""]  # of the next window
    assert rate.shortfall(1999, 20.0)[:20] == "too slow: 1999 bytes"
    assert rate.shortfall(1, 9.9) == ""
