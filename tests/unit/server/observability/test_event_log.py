"""The recorder of the event log: columns, bounds, and what a full ring keeps."""

import asyncio

import pytest

from conch.base.errors import BackendError, Cancelled, ConchError, LimitExceeded, QueueFull, QueueTimeout
from conch.domain.events.layout import KINDS
from conch.domain.events.rows import BatchRow, ExchangeRow, RequestRow, Row
from conch.domain.request import InferRequest, InferResponse, Timeline
from conch.domain.tensor import Tensor
from conch.server.observability import event_log
from conch.server.observability.event_log import EventRecorder, ModelEvents, outcome_of
from conch.server.observability.event_reading import EventReader

ROWS = {
    "requests": RequestRow,
    "batches": BatchRow,
    "exchanges": lambda: ExchangeRow(0, "", 0),
    "steps": event_log.StepRow,
    "pauses": event_log.PauseRow,
    "instances": event_log.InstanceRow,
    "holds": event_log.HoldRow,
    "changes": event_log.ChangeRow,
}


@pytest.mark.parametrize("kind", ROWS)
def test_rows_have_the_columns_of_the_layout(kind: str) -> None:
    row = ROWS[kind]()
    beside = {"id"} if hasattr(row, "id") else set()
    assert set(row.__slots__) == {column.name for column in KINDS[kind]} | beside
    for column in KINDS[kind]:
        assert getattr(row, column.name) in (0, "", *column.codes)


def request(number: int, at: int, shape: tuple[int, ...] = (1, 2)) -> InferRequest:
    timeline = Timeline(at)
    timeline.queued, timeline.started, timeline.done = at + 1, at + 2, at + 3
    made = InferRequest("m", [Tensor("A", "FP32", shape, b"12345678")], id=f"id-{number}", timeline=timeline)
    made.number = number
    return made


def test_a_full_ring_keeps_the_newest_rows_and_says_what_is_missing() -> None:
    recorder = EventRecorder(1)
    events = ModelEvents(recorder, "m", 1)
    size = recorder.rings["requests"].size
    now = EventReader(recorder).read(1e9).monotonic_ns
    start = now - 10**9
    for number in range(1, 3 * size + 11):
        events.ended(request(number, start + number), 0, None, None)
    log = EventReader(recorder).read(1e9)
    assert list(log.requests["number"]) == list(range(2 * size + 11, 3 * size + 11))
    assert log.lost == {"requests": 2 * size + 10}
    assert log.overrun_before == start + 2 * size + 11 + 3
    assert len(recorder.rings["requests"].rows) == size
    assert log.find(f"id-{3 * size}") == 3 * size
    assert EventReader(recorder).read(0.5).overrun_before == 0  # the ring still has all of that time


async def test_ten_thousand_events_a_millisecond() -> None:
    """Rows that are overwritten while they are read are missing, and nothing else is."""
    recorder = EventRecorder(2_000_000)
    events = ModelEvents(recorder, "m", 1)
    size = recorder.rings["requests"].size
    at = EventReader(recorder).read(1e9).monotonic_ns
    for number in range(1, size + 1):
        events.ended(request(number, at), 0, None, None)
    reader = EventReader(recorder)
    reading = asyncio.ensure_future(reader.read_in_slices(1e9))
    await asyncio.sleep(0)  # it reads a slice
    for number in range(size + 1, 2 * size):
        events.ended(request(number, at), 0, None, None)
    numbers = list((await reading).requests["number"])
    assert numbers[0] == 1
    assert numbers[-1] == size
    assert numbers == sorted(set(numbers))
    assert list(reader.read(1e9).requests["number"]) == list(range(size, 2 * size))


def test_an_idle_recorder_takes_no_memory() -> None:
    assert not any(ring.rows for ring in EventRecorder(1 << 40).rings.values())


def test_a_recorder_that_is_off_keeps_nothing() -> None:
    recorder = EventRecorder()
    events = ModelEvents(recorder, "m", 1)
    made = request(0, 5)
    events.begin(made)
    events.refused(made.timeline, QueueFull("full"), 6)
    recorder.pause("gc 2", 1, 2)
    assert made.number == 0
    assert not len(EventReader(recorder).read(1e9).requests)


def test_the_row_of_a_request() -> None:
    recorder = EventRecorder(1 << 20)
    events = ModelEvents(recorder, "m", 3)
    made = request(4, 100)
    made.parent, made.timeline.exchange, made.batch_size = 2, 9, 1
    answer = InferResponse("m", 3, [Tensor("B", "INT8", (3,), b"abc")])
    events.ended(made, 8, answer, None, first_response=102, cache_hit=True)
    log = EventReader(recorder).read(1e9)
    row = log.requests[0]
    expected = {
        "number": 4,
        "parent": 2,
        "exchange": 9,
        "batch": 8,
        "version": 3,
        "cache_hit": 1,
        "input_bytes": 8,
        "output_bytes": 3,
        "first_token": 102,
        "queued": 101,
        "done": 103,
    }
    assert {name: int(row[name]) for name in expected} == expected
    assert log.names[row["shape"]] == "A FP32 [1,2]"
    two = InferRequest("m", [Tensor("A", "FP32", (1,), b"1234"), Tensor("B", "INT8", (2, 1), b"12")])
    events.ended(two, 0, None, None)
    assert EventReader(recorder).read(1e9).names[-1] == "A FP32 [1]; B INT8 [2,1]"


def test_texts_of_clients_are_bounded() -> None:
    recorder = EventRecorder(1 << 20)
    events = ModelEvents(recorder, "m", 1)
    for number in range(3000):
        made = request(number + 1, 100, (1, number))
        made.id = "x" * 1000
        events.ended(made, 0, None, None)
    ring = recorder.rings["requests"]
    rows = [ring.row(number) for number in range(ring.lost, ring.written)]
    assert len(rows) == ring.size
    assert all(isinstance(row, RequestRow) and len(row.id) == 128 for row in rows)
    log = EventReader(recorder).read(1e9)
    assert log.names[log.requests[-1]["shape"]] == "A FP32 [1,2999]"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Cancelled("x"), "cancelled"),
        (QueueTimeout("x"), "timeout"),
        (QueueFull("x"), "rejected"),
        (LimitExceeded("x", retry_after_s=1, quantity="requests"), "rejected"),
        (BackendError("x"), "error"),
    ],
)
def test_outcomes(error: ConchError, outcome: str) -> None:
    assert outcome_of(error) == outcome
    assert outcome in next(column.codes for column in KINDS["requests"] if column.name == "outcome")


def test_unfinished_rows_are_read_too() -> None:
    recorder = EventRecorder(1 << 20)
    events = ModelEvents(recorder, "m", 1)
    waiting: list[tuple[str, Row]] = [("requests", events.unfinished(request(1, 5)))]
    log = EventReader(recorder, lambda: waiting).read(0)
    assert list(log.requests["outcome"]) == [0]
    assert log.requests[0]["number"] == 1
