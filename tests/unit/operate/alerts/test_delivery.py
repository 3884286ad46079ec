"""Queue and delivery with a clock of the test: outages, limits, rejections, restarts."""

import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conch.base.errors import ConfigError
from conch.operate.alerts.chat_services import SERVICES, OutgoingPost, PostReply
from conch.operate.alerts.configuration import Secret, Target
from conch.operate.alerts.delivery import DeliveryClock, TargetDelivery
from conch.operate.alerts.posting import Unanswered
from conch.operate.alerts.queue import AlertQueue, QueueEntry
from tests.unit.operate.alerts.webhooks import alerts

HOUR_S = 3600.0
OK = PostReply(200, {}, b"")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def clock(self) -> DeliveryClock:
        return DeliveryClock(lambda: self.now, lambda: self.now, lambda: 0.5)


class Recorder:
    """Records the names of delivered alerts; `answer` decides."""

    def __init__(self) -> None:
        self.answer: Callable[[OutgoingPost], PostReply] = lambda _: OK
        self.posts: list[OutgoingPost] = []
        self.times: list[float] = []
        self.delivered: list[list[str]] = []

    def __call__(self, post: OutgoingPost) -> PostReply:
        self.posts.append(post)
        reply = self.answer(post)
        if reply.status == 200:
            self.delivered.append(names(post))
        return reply


def names(post: OutgoingPost) -> list[str]:
    return [f"{alert['labels']['alertname']}:{alert['status']}" for alert in json.loads(post.body)["alerts"]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(tmp_path: Path, clock: Clock) -> Iterator[AlertQueue]:
    queue = open_queue(tmp_path, clock)
    yield queue
    queue.close()


def open_queue(folder: Path, clock: Clock, max_alerts: int = 1000) -> AlertQueue:
    queue = AlertQueue(folder / "queue", max_alerts=max_alerts, deduplicate_s=HOUR_S, now=lambda: clock.now)
    queue.open()
    return queue


TARGET = Target("hook", SERVICES["generic"], Secret(literal="http://127.0.0.1/hook-secret-path"))


def delivery_of(queue: AlertQueue, clock: Clock, send: Recorder, target: Target = TARGET) -> TargetDelivery:
    return TargetDelivery(target, queue, send, 24 * HOUR_S, clock.clock())


def put(queue: AlertQueue, *names: str, status: str = "firing", group: str = "g", starts: str = "s") -> Counter[str]:
    given = alerts(*names, status=status, group=group, starts=starts)
    entries = [QueueEntry("hook", alert.group_key, alert) for alert in given]
    accepted = queue.accept(entries)
    assert not accepted.full
    return accepted.new


def run(delivery: TargetDelivery, clock: Clock, until: float) -> None:
    """Run steps as the thread would, without waiting."""
    while clock.now <= until:
        wait = delivery.step()
        if wait > until - clock.now:
            clock.now = max(until, clock.now)
            return
        clock.now += wait


def refused(_: OutgoingPost) -> PostReply:
    raise Unanswered("127.0.0.1: connection refused or host unreachable")


def test_an_hour_of_outage_loses_and_duplicates_nothing(queue: AlertQueue, clock: Clock) -> None:
    send = Recorder()
    send.answer = refused
    delivery = delivery_of(queue, clock, send)
    start = clock.now
    for minute in range(60):
        # Alertmanager repeats group 0 each minute, and adds a group.
        put(queue, "A0", group="0")
        put(queue, f"A{minute}", f"B{minute}", group=str(minute))
        run(delivery, clock, start + 60 * (minute + 1))
    assert len(send.posts) < 40  # back-off
    send.answer = lambda _: OK
    run(delivery, clock, clock.now + HOUR_S)
    told = Counter(name for message in send.delivered for name in message)
    assert told == Counter(f"{letter}{minute}:firing" for letter in "AB" for minute in range(60))
    assert queue.queued("hook") == 0
    assert put(queue, "A0", group="0") == Counter()  # delivered within the hour


def test_alerts_that_wait_in_one_group_become_one_message(queue: AlertQueue, clock: Clock) -> None:
    send = Recorder()
    delivery = delivery_of(queue, clock, send)
    for name in "ABC":
        put(queue, name)
    put(queue, "D", group="other")
    put(queue, "A", status="resolved")
    run(delivery, clock, clock.now + 1)
    assert send.delivered == [["A:firing", "B:firing", "C:firing", "A:resolved"], ["D:firing"]]


def test_the_same_batch_is_retried_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    queue = open_queue(tmp_path, clock)
    put(queue, "A", "B")
    send = Recorder()
    send.answer = refused
    delivery_of(queue, clock, send).step()
    put(queue, "C")
    queue.close()  # what a SIGKILL leaves is tested with a process
    queue = open_queue(tmp_path, clock)
    send.answer = lambda _: OK
    run(delivery_of(queue, clock, send), clock, clock.now + 1)
    assert send.delivered == [["A:firing", "B:firing"], ["C:firing"]]
    keys = [post.headers["Idempotency-Key"] for post in send.posts]
    assert keys[0] == keys[1] != keys[2]
    queue.close()


def test_a_repeat_after_the_time_of_deduplication_is_a_reminder(queue: AlertQueue, clock: Clock) -> None:
    delivery = delivery_of(queue, clock, Recorder())
    assert put(queue, "A")["hook"] == 1
    run(delivery, clock, clock.now + 10)
    clock.now += HOUR_S - 20
    assert put(queue, "A")["hook"] == 0
    clock.now += 20
    assert put(queue, "A")["hook"] == 1


def test_a_clock_that_is_set_back_drops_no_reminders(queue: AlertQueue, clock: Clock) -> None:
    put(queue, "A")
    run(delivery_of(queue, clock, Recorder()), clock, clock.now + 10)
    clock.now -= 24 * HOUR_S
    assert put(queue, "A")["hook"] == 1
    assert put(queue, "A")["hook"] == 0


def test_changes_of_an_alert_are_not_duplicates(queue: AlertQueue) -> None:
    assert put(queue, "A", "A")["hook"] == 1
    assert put(queue, "A", status="resolved")["hook"] == 1
    assert put(queue, "A", starts="later")["hook"] == 1
    assert put(queue, "A", group="other")["hook"] == 1
    assert put(queue, "A")["hook"] == 0


def test_a_full_queue_refuses_all_alerts_of_the_target_and_a_retry_is_complete(tmp_path: Path, clock: Clock) -> None:
    queue = open_queue(tmp_path, clock, max_alerts=3)
    put(queue, "A", "B")
    entries = [QueueEntry(target, "g", alert) for alert in alerts("C", "D") for target in ("hook", "other")]
    accepted = queue.accept(entries)
    assert accepted.full == ("hook",)
    assert accepted.new == Counter(other=2)
    run(delivery_of(queue, clock, send := Recorder()), clock, clock.now + 1)
    accepted = queue.accept(entries)
    assert (accepted.full, accepted.new, accepted.duplicates) == ((), Counter(hook=2), Counter(other=2))
    run(delivery_of(queue, clock, send), clock, clock.now + 1)
    assert send.delivered == [["A:firing", "B:firing"], ["C:firing", "D:firing"]]
    queue.close()


def test_retry_after_is_honoured(queue: AlertQueue, clock: Clock) -> None:
    send = Recorder()
    send.answer = lambda _: PostReply(429, {"retry-after": "120"}, b"")
    delivery = delivery_of(queue, clock, send)
    put(queue, "A")
    assert delivery.step() == 0
    assert delivery.step() == pytest.approx(120)
    clock.now += 119
    put(queue, "B", group="other")  # no message of this target is sent
    assert delivery.step() == pytest.approx(1)
    assert len(send.posts) == 1


def test_a_rejected_message_does_not_block_others_and_is_given_up_after_a_day(
    queue: AlertQueue, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    send = Recorder()
    send.answer = lambda post: PostReply(400, {}, b"bad") if b"Poison" in post.body else OK
    delivery = delivery_of(queue, clock, send)
    put(queue, "A", "Poison", "B")
    put(queue, "C", group="other")
    start = clock.now
    run(delivery, clock, start + 600)
    assert sorted(name for message in send.delivered for name in message) == ["A:firing", "B:firing", "C:firing"]
    assert queue.queued("hook") == 1
    run(delivery, clock, start + 25 * HOUR_S)
    assert queue.queued("hook") == 0
    assert delivery.counts.given_up == 1
    assert 'rejected alert "Poison": HTTP status 400: bad; giving up' in caplog.text


def test_a_disk_that_fails_after_a_delivery_does_not_repeat_it(
    queue: AlertQueue, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Recorder()
    delivery = delivery_of(queue, clock, send)
    put(queue, "A")
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        patch.setattr(queue, "settle", fail)
        run(delivery, clock, clock.now + 60)
    run(delivery, clock, clock.now + 60)
    assert send.delivered == [["A:firing"]]
    assert queue.queued("hook") == 0


def test_no_more_messages_than_the_service_allows(queue: AlertQueue, clock: Clock) -> None:
    times: list[float] = []
    target = replace(TARGET, service=replace(SERVICES["generic"], burst=5, per_minute=15))
    send = Recorder()

    def answer(_: OutgoingPost) -> PostReply:
        times.append(clock.now)
        return OK

    send.answer = answer
    for number in range(100):
        put(queue, "A", group=str(number))
    run(delivery_of(queue, clock, send, target), clock, clock.now + HOUR_S)
    assert len(times) == 100
    assert max(sum(1 for other in times if time_s <= other < time_s + 60) for time_s in times) <= 20


def test_a_secret_that_disappears_is_an_outage_without_the_secret_in_the_log(
    queue: AlertQueue, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "url"
    send = Recorder()
    delivery = delivery_of(queue, clock, send, replace(TARGET, url=Secret(file=file)))
    put(queue, "A")
    run(delivery, clock, clock.now + 5)
    file.write_text("http://127.0.0.1/hook-secret-path\n")
    send.answer = lambda post: PostReply(500, {}, f"cannot find {post.url} nor hook-secret-path".encode())
    run(delivery, clock, clock.now + 60)
    send.answer = lambda _: OK
    run(delivery, clock, clock.now + 600)
    assert send.delivered == [["A:firing"]]
    assert (
        f'target "hook" failed: a secret cannot be read: [Errno 2] No such file or directory: {str(file)!r}'
        in caplog.text
    )
    assert "cannot find *** nor ***" in caplog.text
    assert 'target "hook" accepts messages again' in caplog.text
    assert 'delivered 1 alert(s) to target "hook": "A"' in caplog.text
    assert "hook-secret-path" not in caplog.text


def test_two_processes_cannot_use_one_queue(queue: AlertQueue, tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(ConfigError, match="another process uses the queue"):
        open_queue(tmp_path, clock)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b""])
def test_a_file_that_is_not_a_queue_is_named(tmp_path: Path, clock: Clock, content: bytes) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "queue.db").write_bytes(content)
    if content:
        with pytest.raises(ConfigError, match=r"cannot open the queue .*queue\.db.*; move the file away"):
            open_queue(tmp_path, clock)
    else:
        open_queue(tmp_path, clock).close()


def test_a_full_disk_refuses_webhooks_and_keeps_the_rest(queue: AlertQueue) -> None:
    put(queue, "A")
    queue._database.execute("PRAGMA max_page_count = 20")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        put(queue, *(f"B{number}" for number in range(900)))
    assert queue.queued("hook") == 1
    batch = queue.next_batch("hook", 10)
    assert batch is not None
    assert [alert.name for alert in batch.alerts] == ["A"]
