"""Recorded and replayed runs, compared."""

from dataclasses import replace

import numpy as np
import pytest

from conch.domain.events.log import EventLog
from conch.measure.incidents.replay import ReplayComparison, _print, run_of


def log_of(batches: list[list[int]], first: int = 1, ms: int = 2) -> EventLog:
    """Return a log whose requests arrive by number, a millisecond apart, and take `ms`; batches form in order."""
    rows = []
    for batch, members in enumerate(batches, 100):
        for member in members:
            at = 1_000_000 * (first + member)
            rows.append({"number": first + member, "model": "m", "received": at, "done": at + ms * 1_000_000,
                         "outcome": "ok", "batch": batch})  # fmt: skip
    formed = [
        {"number": number, "model": "m", "formed": number, "size": 1} for number in range(100, 100 + len(batches))
    ]
    other = {"number": 9999, "model": "other", "received": 5, "done": 6, "outcome": "ok"}
    return EventLog.of_rows({"requests": [*reversed(rows), other], "batches": formed[::-1]}, monotonic_ns=2**40)


def test_requests_are_known_by_their_place_in_the_order_of_arrival() -> None:
    batches = [[0], [1, 3], [2]]
    run = run_of(log_of(batches, first=50), "m")
    assert list(run.batches) == [frozenset(batch) for batch in batches]
    assert (run.requests, run.failed) == (4, 0)
    assert run.percentiles() == pytest.approx({"p50": 0.002, "p95": 0.002, "p99": 0.002})


def test_equal_runs_of_different_numbers_are_equal() -> None:
    comparison = ReplayComparison(
        "m", run_of(log_of([[0, 1], [2]]), "m"), run_of(log_of([[0, 1], [2]], first=700, ms=4), "m")
    )
    assert comparison.has_same_sequence
    assert comparison.equal_batches == 1
    document = comparison.document()
    assert document["replayed"]["p99_s"] == pytest.approx(2 * document["recorded"]["p99_s"])
    assert (document["recorded"]["batches"], document["recorded"]["mean_batch"]) == (2, 1.5)


def test_other_batches_are_a_share() -> None:
    comparison = ReplayComparison(
        "m", run_of(log_of([[0, 1], [2], [3], [4]]), "m"), run_of(log_of([[0], [1, 2], [4], [3]]), "m")
    )
    assert not comparison.has_same_sequence
    assert comparison.equal_batches == 0.5


def test_failed_and_unfinished_requests_have_no_latency() -> None:
    rows = [
        {"number": number, "model": "m", "received": number, "done": number + 10, "outcome": outcome}
        for number, outcome in enumerate(("ok", "error", "rejected", "unfinished"), 1)
    ]
    run = run_of(EventLog.of_rows({"requests": rows}), "m")
    assert (run.requests, run.failed, len(run.latency_s)) == (3, 2, 1)
    assert run_of(EventLog.of_rows({"requests": rows}), "gone").percentiles() == {"p50": None, "p95": None, "p99": None}
    assert ReplayComparison("m", run, run).equal_batches == 1


def test_requests_before_a_time_are_left_out() -> None:
    run = run_of(log_of([[0], [1], [2]]), "m", after_ns=1_500_000)
    assert (run.requests, np.count_nonzero(run.latency_s)) == (2, 2)


def test_latency_is_that_of_the_whole_call() -> None:
    requests = [
        {"number": number, "exchange": exchange, "model": "m", "received": 100, "done": 200, "outcome": "ok"}
        for number, exchange in ((1, 7), (2, 0), (3, 9))
    ]
    exchanges = [{"number": 8, "first_byte": 1}, {"number": 7, "first_byte": 40, "written": 260, "drained": 300}]
    run = run_of(EventLog.of_rows({"requests": requests, "exchanges": exchanges}), "m")
    assert sorted((run.latency_s * 1e9).round().tolist()) == [100, 100, 260]


def test_names_of_models_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "m[/x]\x1b]0;owned\x07"
    log = log_of([[0, 1], [2]])
    log = replace(log, names=[name if text == "m" else text for text in log.names])
    _print([ReplayComparison(name, run_of(log, name), run_of(log, name))])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "m[/x]\N{REPLACEMENT CHARACTER}]0;owned" in shown
