from dataclasses import replace

import numpy as np
import pytest

from conch.measure.bench.measurement import ClientHealth, Note
from conch.measure.bench.records import Records, RequestOutcome
from conch.measure.bench.statistics.summary import summarize
from tests.unit.measure.bench.statistics.recorded import NO_CHUNKS, records_of, settings_of, stream

HEALTHY = ClientHealth(1, 0.3, 0.3, 10e-6, 50e-6, 1e-3, 0, 0.0, 0.0, 0.0)


def plain(count: int = 6000, seed: int = 0) -> Records:
    rng = np.random.default_rng(seed)
    return records_of(np.sort(rng.uniform(0, 60, count)), 0.02 * rng.lognormal(0, 0.3, count))


def notes(
    records: Records, client: ClientHealth | None = HEALTHY, end_s: float = 60, **more: object
) -> dict[str, Note]:
    measured = summarize(records, NO_CHUNKS, settings_of(end_s, client=client, **more))
    return {note.code: note for note in measured.notes}


def test_a_good_run_has_no_note_but_of_the_last_percentile() -> None:
    assert set(notes(plain())) <= {"few-samples"}
    assert not notes(plain(20_000))


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        ({"cpu_ratio": 0.95}, "client-bottleneck", "invalid"),
        ({"send_lag_p50_s": 0.005}, "client-bottleneck", "invalid"),
        ({"send_lag_p99_s": 0.02}, "client-bottleneck", "invalid"),
        ({"cpu_wait_p50_s": 0.0, "cpu_wait_p99_s": 0.02}, "client-bottleneck", "invalid"),
        ({"cpu_wait_p50_s": 0.003, "cpu_wait_p99_s": 0.005}, "client-bottleneck", "invalid"),
        ({"pressure_ratio": 0.6}, "cpu-pressure", "warning"),
        ({"steal_ratio": 0.08}, "steal", "warning"),
        ({"throttled_s": 2.0}, "throttled", "warning"),
        ({"gc_pauses": 1, "gc_pause_max_s": 0.1}, "gc-pauses", "warning"),
        ({"loop_lag_max_s": 0.1}, "client-pauses", "info"),
    ],
)
def test_faults_of_the_client_and_its_machine(change: dict[str, float], code: str, severity: str) -> None:
    by_code = notes(plain(20_000), replace(HEALTHY, **change))
    assert [(note.code, note.severity) for note in by_code.values()] == [(code, severity)]


@pytest.mark.parametrize(
    ("lag", "code"),
    [
        ({"send_lag_p50_s": 115e-6}, "client-lag"),
        ({"send_lag_p99_s": 800e-6}, "client-lag"),
        ({"send_lag_p50_s": 90e-6}, None),
        ({"cpu_wait_p50_s": 0.0, "cpu_wait_p99_s": 800e-6}, "client-lag"),
        ({"cpu_wait_p50_s": 0.0, "cpu_wait_p99_s": 90e-6}, None),
        ({"pressure_ratio": 0.9, "cpu_wait_ratio": 0.01}, None),
        ({"send_lag_p50_s": 115e-6, "cpu_ratio": 0.95}, "client-bottleneck"),
        ({"send_lag_p50_s": 115e-6, "send_lag_p99_s": 0.002}, "client-bottleneck"),
    ],
)
def test_lag_of_a_quick_client_on_a_quick_server_is_said_but_comparable(
    lag: dict[str, float], code: str | None
) -> None:
    quick = plain(20_000)
    quick["done_ns"] = quick["sent_ns"] + (quick["done_ns"] - quick["sent_ns"]) // 50
    by_code = notes(quick, replace(HEALTHY, loop_lag_max_s=50e-6, **lag))
    assert set(by_code) == ({code} if code else set())
    assert all(note.severity == ("info" if name == "client-lag" else "invalid") for name, note in by_code.items())


def test_waits_of_a_client_that_reads_chunks_are_compared_with_their_times() -> None:
    """3 ms are little of an answer of 200 ms, and much of the 4 ms between two of its chunks."""
    records = records_of(np.arange(1000) * 0.05, 0.2)
    records["output_tokens"] = 50
    answers = [[(0.004 * (at + 1), 0, 4) for at in range(50)]] * 1000
    chunks = np.concatenate([stream(records, row, answer, 50 * row) for row, answer in enumerate(answers)])
    health = replace(HEALTHY, cpu_wait_p50_s=0.0, cpu_wait_p99_s=0.003)
    measured = summarize(records, chunks, settings_of(50, client=health))
    (note,) = (note for note in measured.notes if note.code == "client-bottleneck")
    assert "read 1 % of all answers 3.00 ms late" in note.message


def test_unknown_health_is_not_a_fault() -> None:
    assert not notes(plain(20_000), replace(HEALTHY, steal_ratio=None, throttled_s=None))
    assert not notes(plain(20_000), None)


def test_few_samples_say_how_many_are_needed() -> None:
    note = notes(plain(500), end_s=60)["few-samples"]
    assert note.severity == "info"
    assert "500 requests are too few for an interval of P99.9; P99.9 needs 3,688" in note.message
    assert notes(plain(100))["few-samples"].severity == "warning"


def test_periodic_stalls_are_reported_with_their_period() -> None:
    at = np.arange(0, 60, 0.01)
    since = at % 10
    records = records_of(at, np.where(since >= 9, 10 - since, 0.0) + 0.005)
    note = notes(records)["stalls"]
    assert "no answer 6 times for up to 1.0" in note.message
    assert "about every 10.0 s" in note.message
    assert "coordinated omission" in notes(records, is_open_loop=False)["stalls"].message


def test_pauses_of_the_load_are_not_stalls() -> None:
    at = np.concatenate((np.arange(0, 20, 0.01), np.arange(40, 60, 0.01)))
    assert "stalls" not in notes(records_of(at, 0.005))


def test_errors() -> None:
    records = plain()
    records["outcome"][::10] = RequestOutcome.SERVER_ERROR
    assert notes(records)["errors"].severity == "warning"
    assert "(10 %)" in notes(records)["errors"].message
    records["outcome"] = RequestOutcome.REJECTED
    assert notes(records)["no-success"].message == "no request succeeded"
    assert notes(records_of([], []))["no-success"].message == "no request ended in the window"


def test_a_server_that_was_away_is_reported() -> None:
    records = plain()
    away = (records["intended_ns"] - records["intended_ns"].min() > 20e9) & (
        records["intended_ns"] - records["intended_ns"].min() < 25e9
    )
    records["outcome"][away] = RequestOutcome.CONNECTION_ERROR
    note = notes(records)["server-restart"]
    assert (note.severity, "from 20." in note.message) == ("invalid", True)


def test_a_server_that_stays_away_has_not_restarted() -> None:
    records = plain()
    records["outcome"][4000:] = RequestOutcome.CONNECTION_ERROR
    assert "server-restart" not in notes(records)


def test_single_connection_errors_are_not_a_restart() -> None:
    records = plain()
    records["outcome"][::500] = RequestOutcome.CONNECTION_ERROR
    by_code = notes(records)
    assert "server-restart" not in by_code
    assert by_code["errors"].severity == "info"


def test_overload_is_reported_with_both_rates() -> None:
    at = np.arange(0, 60, 0.01)
    by_code = notes(records_of(at, 0.01 + at * 0.25))
    assert "the server answered 80" in by_code["overload"].message
    assert "of 100 requests per second" in by_code["overload"].message
    assert "not-steady" not in notes(records_of(at, 0.01 + at * 0.25), is_load_steady=False)


def test_two_modes_are_located() -> None:
    rng = np.random.default_rng(0)
    latency = np.where(rng.random(6000) < 0.25, 0.1, 0.01) * rng.lognormal(0, 0.1, 6000)
    message = notes(records_of(np.arange(6000) / 100, latency))["bimodal"].message
    assert "(25 % of requests)" in message or "(26 % of requests)" in message or "(24 % of requests)" in message


def test_unfinished_requests_are_reported() -> None:
    at = np.arange(0, 60, 0.1)
    stuck = at >= 50
    records = records_of(
        at, np.where(stuck, 60 - at, 0.1), np.where(stuck, RequestOutcome.UNFINISHED, RequestOutcome.OK)
    )
    by_code = notes(records)
    assert "a lower bound" in by_code["unfinished"].message
    assert "in-flight" in by_code
