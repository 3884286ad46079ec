from dataclasses import replace

import pytest

from conch.measure.bench.certify import merge_rounds
from conch.measure.bench.measurement import (
    ClientHealth,
    Estimate,
    Level,
    Measurement,
    Note,
    ServerFigures,
    TimeDistribution,
)

_LATENCY = TimeDistribution(100, Estimate(0.002), {"50": Estimate(0.001), "99": Estimate(0.01)}, 0.02, ((0.001, 60),))
_ROUND = Measurement(
    Level("concurrency", 4, "4"),
    "2026-01-01T00:00:00+00:00",
    2.0,
    0.5,
    100,
    {"ok": 99, "timeout": 1},
    (("too slow", 1),),
    Estimate(50.0, 45.0, 55.0),
    _LATENCY,
    server=ServerFigures(requests=99, queue_s=0.001),
    client=ClientHealth(1, 0.5, 0.5, 0.0, 0.0, 0.0, 0, 0.0, None, None),
    notes=(Note("stall", "warning", "a stall"),),
)


def test_one_round_stays_as_it_is() -> None:
    assert merge_rounds([_ROUND]) is _ROUND


def test_rounds_become_sums_means_and_the_worst_of_the_client() -> None:
    assert _ROUND.client is not None
    second = replace(
        _ROUND,
        throughput=Estimate(60.0),
        outcomes={"ok": 100},
        latency=replace(_LATENCY, max=0.05, histogram=((0.001, 40), (0.002, 60))),
        server=ServerFigures(requests=100, queue_s=0.003),
        client=replace(_ROUND.client, cpu_ratio=0.9),
    )
    merged = merge_rounds([_ROUND, second])
    assert merged.level == _ROUND.level
    assert (merged.window_s, merged.requests, merged.outcomes) == (4.0, 200, {"ok": 199, "timeout": 1})
    assert merged.errors == (("too slow", 2),)
    assert merged.throughput.value == 55.0
    assert merged.throughput.low is not None
    assert merged.throughput.low < 50 < 60 < (merged.throughput.high or 0)
    assert merged.latency is not None
    assert merged.latency.max == 0.05
    assert merged.latency.histogram == ((0.001, 100), (0.002, 60))
    assert merged.server is not None
    assert (merged.server.requests, merged.server.queue_s, merged.server.batch_size) == (199, 0.002, None)
    assert merged.client is not None
    assert merged.client.cpu_ratio == 0.9
    assert merged.notes == _ROUND.notes


def test_nothing_cannot_be_merged() -> None:
    with pytest.raises(ValueError, match="no rounds"):
        merge_rounds([])
