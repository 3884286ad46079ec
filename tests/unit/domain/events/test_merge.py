"""Logs that were read one after the other become one."""

from conch.domain.events.log import EventLog
from conch.domain.events.merge import merged


def test_each_row_is_there_once_and_the_later_version_wins() -> None:
    early = {"number": 1, "model": "a", "received": 1, "done": 9, "outcome": "ok"}
    first = EventLog.of_rows(
        {
            "requests": [early, {"number": 2, "model": "b", "received": 5, "outcome": "unfinished"}],
            "pauses": [{"kind": "stall", "started": 1, "ended": 2}],
        },
        monotonic_ns=10,
    )
    second = EventLog.of_rows(
        {
            "requests": [early, {"number": 2, "model": "b", "received": 5, "done": 15, "outcome": "ok"}],
            "pauses": [{"kind": "stall", "started": 1, "ended": 2}, {"kind": "stall", "started": 3, "ended": 4}],
        },
        monotonic_ns=20,
    )
    log = merged([first, second])
    assert list(log.requests["number"]) == [1, 2]
    assert list(log.requests["done"]) == [9, 15]
    assert list(log.pauses["started"]) == [1, 3]
    assert log.monotonic_ns == 20


def test_names_of_different_tables_are_joined() -> None:
    first = EventLog.of_rows({"requests": [{"number": 1, "model": "a"}, {"number": 2, "model": "b"}]}, monotonic_ns=1)
    second = EventLog.of_rows({"requests": [{"number": 3, "model": "b", "tenant": "t"}]}, monotonic_ns=2)
    log = merged([first, second])
    assert [log.names[model] for model in log.requests["model"]] == ["a", "b", "b"]
    assert [log.names[tenant] for tenant in log.requests["tenant"]] == ["", "", "t"]


def test_a_gap_between_reads_is_an_overrun() -> None:
    def read(at: int, overrun: int) -> EventLog:
        return EventLog.of_rows({}, monotonic_ns=at, overrun_before=overrun, lost={"requests": overrun})

    assert merged([read(100, 50), read(200, 90)]).overrun_before == 50  # all lost rows are in the first read
    late = merged([read(100, 50), read(200, 150)])
    assert late.overrun_before == 150
    assert late.lost == {"requests": 150}


def test_no_logs_are_an_empty_one() -> None:
    assert len(merged([]).requests) == 0


def test_a_step_of_the_wall_clock_between_reads_changes_no_duration() -> None:
    """The rows have times of the monotonic clock; the last read says what they are on the wall."""
    hour = 3600 * 10**9
    early = {"number": 1, "received": 1_000, "done": 9_000, "outcome": "ok"}
    late = {"number": 2, "received": 11_000, "done": 19_000, "outcome": "ok"}
    first = EventLog.of_rows({"requests": [early]}, monotonic_ns=10_000, wall_ns=2 * hour)
    second = EventLog.of_rows({"requests": [early, late]}, monotonic_ns=20_000, wall_ns=hour)  # set back by an hour
    log = merged([first, second])
    received, done = log.requests["received"], log.requests["done"]
    assert [log.wall(end) - log.wall(start) for start, end in zip(received, done, strict=True)] == [8_000, 8_000]
    assert log.wall(received[1]) - log.wall(received[0]) == 10_000
    assert log.wall(done[1]) == hour - 1_000
