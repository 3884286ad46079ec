"""The histogram of lags: buckets and percentiles."""

from hypothesis import given
from hypothesis import strategies as st

from conch.measure.bench.load.delays import LagHistogram, percentile_s, upper_edge_ns


@given(st.integers(0, 1 << 60))
def test_a_time_lies_closely_below_the_edge_of_its_bucket(time_ns: int) -> None:
    histogram = LagHistogram()
    histogram.add(time_ns)
    ((bucket, count),) = histogram.take()
    assert count == 1
    assert time_ns < upper_edge_ns(bucket) <= max(time_ns + 1, time_ns * 1.126)


def test_percentiles_are_those_of_the_times() -> None:
    histogram = LagHistogram()
    for time_us in range(1, 1001):
        histogram.add(time_us * 1000)
    histogram.add(-5)
    counts = dict(histogram.take())
    assert 500e-6 <= percentile_s(counts, 0.5) <= 500e-6 * 1.13
    assert 990e-6 <= percentile_s(counts, 0.99) <= 990e-6 * 1.13
    assert histogram.take() == []
    assert percentile_s({}, 0.5) == 0.0
