import pytest

from conch.metric_catalog.catalog import all_metrics
from conch.monitoring.rules.known_metrics import MetricTable
from conch.monitoring.rules.live_series import can_be_scraped, live_exposition, sample_values
from conch.monitoring.rules.rule import Proof, counter, gauge

TABLE = MetricTable(all_metrics())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", [1]),
        ("1x2", [1, 1, 1]),
        ("0+1.5x2 9", [0, 1.5, 3, 9]),
        ("5-1x1 _x2 _", [5, 4, None, None, None]),
        ("1e+09x1", [1e9, 1e9]),
        ("-2+3e-05x1", [-2, -1.99997]),
    ],
)
def test_the_notation_of_promtool_is_read(text: str, expected: list[float | None]) -> None:
    assert sample_values(text) == expected


def test_invalid_notation_is_refused() -> None:
    with pytest.raises(ValueError, match="'1y' is not a sequence of samples"):
        sample_values("1y")


def test_counters_grow_evenly_and_gauges_keep_their_values() -> None:
    labels = {"model": "m", "version": "1", "job": "conch", "instance": "a"}
    proof = Proof(
        "",
        (
            counter("nv_inference_request_success", labels, (2, 30)),
            gauge("conch_queue_depth", labels, (3, 15), (None, 15), (4, 15)),
        ),
        60,
        1,
    )
    name = 'nv_inference_request_success{model="conch-drill",version="1"}'
    depth = 'conch_queue_depth{model="conch-drill",version="1"}'
    assert live_exposition(proof, 7.5, TABLE) == f"{name} 15.0\n{depth} 3.0\n"
    assert live_exposition(proof, 22.5, TABLE) == f"{name} 45.0\n"
    assert live_exposition(proof, 150, TABLE) == f"{name} 300.0\n{depth} 4.0\n"


def test_the_state_of_a_target_cannot_be_exposed() -> None:
    assert not can_be_scraped(Proof("", (gauge("up", {"job": "a"}, (0, 60)),), 60, 1))
