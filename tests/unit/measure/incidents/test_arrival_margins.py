"""Arrivals that are moved away from the times at which batches were formed."""

from typing import Any

from conch.domain.events.layout import WHY_NOW
from conch.domain.events.log import EventLog
from conch.measure.incidents.arrival_margins import with_margins
from conch.measure.incidents.live_replay import arrivals_of

MS = 1_000_000
LATENCY = 40 * MS  # so that requests are moved by up to 2 ms


def moved(requests: list[tuple[float, int]], batches: list[tuple[int, float, str, float]]) -> list[float]:
    """Return by how much (ms) requests (queued in ms, batch) are moved, in their order.

    Batches are (number, formed, why, released), in ms.
    """
    rows: dict[str, list[dict[str, Any]]] = {
        "requests": [
            {"number": number, "model": "m", "batch": batch, "received": int(at * MS) - 100, "queued": int(at * MS),
             "done": int(at * MS) + LATENCY}
            for number, (at, batch) in enumerate(requests, 1)
        ],
        "batches": [
            {"number": number, "model": "m", "formed": int(formed * MS), "why_now": WHY_NOW.index(why),
             "released": int(released * MS)}
            for number, formed, why, released in batches
        ],
    }  # fmt: skip
    log = EventLog.of_rows(rows)
    arrivals = arrivals_of(log, ["m"])
    return [round(ns / MS, 3) for ns in (with_margins(log, arrivals) - arrivals["received"]).tolist()]


def test_who_came_just_before_a_batch_comes_earlier_and_who_came_just_after_comes_later() -> None:
    batches = [(1, 10, "idle", 50.0), (2, 50.01, "idle", 90.0), (3, 90.01, "idle", 99.0)]
    requests = [(10.0, 1), (30.0, 2), (49.8, 2), (50.2, 3), (70.0, 3)]
    assert moved(requests, batches) == [0, 0, -1.29, 1.31, 0]


def test_nothing_is_moved_away_from_a_full_batch_that_waited_for_an_instance() -> None:
    batches = [(1, 10, "idle", 50.0), (2, 50.01, "full", 90.0), (3, 90.01, "idle", 99.0)]
    assert moved([(10.0, 1), (30.0, 2), (31.0, 2), (50.2, 3)], batches) == [0, 0, 0, 0]


def test_who_comes_after_an_arrival_that_formed_a_batch_comes_later() -> None:
    batches = [(1, 10.1, "idle", 50.0), (2, 50.01, "idle", 90.0)]
    assert moved([(10.0, 1), (10.3, 2)], batches) == [0, 1.3]


def test_a_batch_whose_delay_is_over_moves_with_its_first_request() -> None:
    batches = [(1, 10.0, "full", 50.0), (2, 15.2, "delay over", 90.0)]
    assert moved([(9.9, 1), (10.2, 2), (15.1, 2)], batches) == [0, 1.3, -0.1]


def test_where_there_is_no_room_a_request_comes_between() -> None:
    batches = [(1, 10.0, "idle", 11.0), (2, 11.01, "idle", 12.0), (3, 12.01, "idle", 13.0)]
    requests = [(10.0, 1), (10.9, 2), (11.2, 3)]
    shifts = moved(requests, batches)
    assert shifts[0] == 0
    assert 10.0 < 10.9 + shifts[1] < 11.01 < 11.2 + shifts[2] < 12.01


def test_requests_of_short_executions_are_moved_less() -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        "requests": [
            {"number": 1, "model": "m", "batch": 1, "received": 1, "queued": 1, "done": 1 * MS + 1},
            {"number": 2, "model": "m", "batch": 2, "received": MS - 10, "queued": MS - 10, "done": 2 * MS - 10},
        ],
        "batches": [
            {"number": 1, "model": "m", "formed": 2, "released": MS},
            {"number": 2, "model": "m", "formed": MS + 1, "released": 2 * MS},
        ],
    }
    log = EventLog.of_rows(rows)
    arrivals = arrivals_of(log, ["m"])
    assert (with_margins(log, arrivals) - arrivals["received"]).tolist() == [0, -MS // 10]
