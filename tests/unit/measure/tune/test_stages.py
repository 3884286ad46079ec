from typing import Any

from conch.measure.tune.outcome import bottleneck, called_models, stage_loads


def _statistics(requests: int, queue_ms: float, compute_ms: float, executions: int | None = None) -> dict[str, Any]:
    """Sums, as a server has them."""
    return {
        "inference_count": requests,
        "execution_count": requests if executions is None else executions,
        "inference_stats": {
            "success": {"count": requests, "ns": 0},
            "queue": {"count": requests, "ns": int(queue_ms * 1e6 * requests)},
            "compute_infer": {"count": requests, "ns": int(compute_ms * 1e6 * requests)},
        },
    }


def test_the_stage_with_the_longest_queue_is_the_bottleneck() -> None:
    after = {"pre": _statistics(100, 1, 20), "net": _statistics(100, 60, 30), "post": _statistics(100, 0, 5)}
    loads = stage_loads({}, after, {"pre": 2, "net": 1, "post": 1}, window_s=3.0)
    narrow = bottleneck(loads)
    assert narrow is not None
    assert narrow.model == "net"
    assert abs(narrow.utilization - 1.0) < 0.01


def test_without_queues_it_is_the_stage_that_computes_longest() -> None:
    after = {"pre": _statistics(100, 0.1, 20), "net": _statistics(100, 0.2, 30)}
    narrow = bottleneck(stage_loads({}, after, {"pre": 1, "net": 1}, 10.0))
    assert narrow is not None
    assert narrow.model == "net"


def test_a_batch_keeps_an_instance_busy_once() -> None:
    after = {"net": _statistics(100, 0, 40, executions=25)}
    (load,) = stage_loads({}, after, {"net": 1}, window_s=1.0)
    assert abs(load.busy_instances - 1.0) < 0.01


def test_statistics_that_begin_again_are_of_the_window() -> None:
    before, after = {"net": _statistics(500, 1, 1)}, {"net": _statistics(20, 1, 1)}
    assert stage_loads(before, after, {"net": 1}, 1.0)[0].requests == 20


def test_models_called_by_a_bls_model() -> None:
    before = {"bls": _statistics(10, 0, 1), "a": _statistics(100, 0, 1), "b": _statistics(0, 0, 1)}
    after = {"bls": _statistics(60, 0, 1), "a": _statistics(150, 0, 1), "b": _statistics(3, 0, 1)}
    assert called_models("bls", before, after) == ["a"]


def test_nothing_measured_has_no_bottleneck() -> None:
    assert bottleneck(stage_loads({}, {}, {"net": 1}, 1.0)) is None
