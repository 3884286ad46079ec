"""Counting rules of the statistics."""

from conch.base.errors import FailureReason
from conch.domain.statistics.model_statistics import Duration, Histogram, ModelStatistics


def test_a_duration_never_falls() -> None:
    duration = Duration()
    duration.add(5)
    duration.add(-3)
    assert (duration.count, duration.ns) == (2, 5)


def test_a_success_counts_as_one_request_and_as_many_inferences_as_its_batch() -> None:
    model = ModelStatistics("m", 1)
    model.count_success(4, total=50, queue=1, compute_input=2, compute_infer=3, compute_output=4)
    assert (model.success.count, model.inference_count, model.execution_count) == (1, 4, 0)
    assert (model.success.ns, model.queue.ns, model.compute_infer.ns) == (50, 1, 3)
    assert model.last_inference_ms > 0


def test_a_failure_counts_under_its_reason_only() -> None:
    model = ModelStatistics("m", 1)
    model.count_failure(7, FailureReason.REJECTED)
    assert (model.fail.count, model.fail.ns, model.success.count, model.queue.count) == (1, 7, 0, 0)
    assert {reason.value: count for reason, count in model.failures.items()} == {
        "REJECTED": 1,
        "CANCELED": 0,
        "BACKEND": 0,
        "OTHER": 0,
    }


def test_executions_are_kept_by_batch_size() -> None:
    model = ModelStatistics("m", 1)
    model.count_execution(4, 0, 10, 30, 60)
    model.count_execution(4, 0, 10, 30, 60)
    model.count_execution(1, 0, 1, 2, 3)
    assert model.execution_count == 3
    assert sorted(model.batches) == [1, 4]
    four = model.batches[4]
    assert (four.compute_input.ns, four.compute_infer.ns, four.compute_output.ns) == (20, 40, 60)
    assert four.compute_infer.count == 2


def test_a_histogram_counts_a_bound_below_itself() -> None:
    histogram = Histogram((1, 2), 1_000_000)
    for ns in (0, 1_000_000, 1_000_001, 2_000_000, 2_000_001, -5):
        histogram.add(ns)
    assert histogram.counts == [3, 2, 1]
    assert histogram.ns == 6_000_002
