"""Delivers the queued alerts of one target."""

import logging
import math
import random
import sqlite3
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from conch.base.pacing import TokenBucket, backoff_s
from conch.operate.alerts.chat_services import DeliveryOutcome, OutgoingPost, PostReply, Verdict
from conch.operate.alerts.configuration import Target, redact
from conch.operate.alerts.message import TemplateFailed
from conch.operate.alerts.posting import attempt, number_that_fits
from conch.operate.alerts.queue import AlertBatch, AlertQueue

_log = logging.getLogger(__name__)

_DISK_RETRY_S = 5.0
_FIRST_BACKOFF_S, _MAX_BACKOFF_S = 1.0, 300.0
_MAX_IDLE_S = 3600.0
_MAX_LOGGED_NAMES = 5


@dataclass(slots=True)
class DeliveryClock:
    """The clocks of a delivery: Unix time, monotonic time, and random numbers in [0, 1) for jitter."""

    unix: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random


@dataclass(slots=True)
class DeliveryCounts:
    """Counters since the start. Written by the delivery's thread only."""

    delivered: int = 0
    failed_attempts: int = 0
    given_up: int = 0


@dataclass(slots=True)
class _Postponed:
    failures: int
    due: float


@dataclass(slots=True)
class TargetDelivery:
    """Delivers the alerts of a target, one message at a time. One thread calls `step`.

    If the target fails, all messages wait; if it rejects a message, the others are sent meanwhile.
    """

    target: Target
    queue: AlertQueue
    send: Callable[[OutgoingPost], PostReply]
    give_up_s: float
    clock: DeliveryClock = field(default_factory=DeliveryClock)
    counts: DeliveryCounts = field(default_factory=DeliveryCounts)
    _pace: TokenBucket = field(init=False)
    _failures: int = 0  # of the target, consecutive
    _not_before: float = -math.inf
    _rejected: dict[int, _Postponed] = field(default_factory=dict)
    _settling: AlertBatch | None = None  # delivered, but not yet stored as such
    _disk_failing: bool = False

    def __post_init__(self) -> None:
        self._pace = TokenBucket(self.target.service.burst, self.target.service.per_minute / 60, self.clock.monotonic())

    def step(self) -> float:
        """Send the next message if one is due. Return the seconds until the next call; infinity for an empty queue."""
        try:
            wait = self._step()
        except sqlite3.Error as error:
            if not self._disk_failing:
                text = 'target "%s": the queue cannot be read or written: %s; retrying every %.0f s'
                _log.error(text, self.target.name, error, _DISK_RETRY_S)
            self._disk_failing = True
            return _DISK_RETRY_S
        if self._disk_failing:
            _log.info('target "%s": the queue can be read and written again', self.target.name)
        self._disk_failing = False
        return wait

    def _step(self) -> float:
        if self._settling is not None:
            self._settle(self._settling)
        now = self.clock.monotonic()
        wait = max(self._not_before - now, self._pace.delay_s(now))
        if wait > 0:
            return wait
        postponed = [number for number, alert in self._rejected.items() if alert.due > now]
        batch = self.queue.next_batch(self.target.name, self.target.max_alerts, postponed)
        if batch is None:
            return min((postponed.due - now for postponed in self._rejected.values()), default=math.inf)
        if not batch.number:
            batch = self._store(batch)
        self._pace.take(now, 1)
        outcome = attempt(self.target, batch.alerts, self.send, self.clock.unix)
        if outcome.verdict is Verdict.DELIVERED:
            self._delivered(batch)
        else:
            self._failed(batch, outcome)
        return 0.0

    def _store(self, batch: AlertBatch) -> AlertBatch:
        """Store the alerts that fit into one message as a batch."""
        try:
            number = number_that_fits(self.target, batch.alerts)
        except TemplateFailed:
            number = 1  # the attempt reports it
        self.queue.store(batch.rows[:number])
        return AlertBatch(batch.rows[0], batch.rows[:number], batch.alerts[:number], batch.accepted_at)

    def _delivered(self, batch: AlertBatch) -> None:
        if self._failures:
            _log.info('target "%s" accepts messages again', self.target.name)
        self._failures = 0
        self._rejected.pop(batch.number, None)
        self._settling = batch
        self.counts.delivered += len(batch.alerts)
        names = ", ".join(f'"{name}"' for name in sorted({alert.name for alert in batch.alerts})[:_MAX_LOGGED_NAMES])
        _log.info('delivered %d alert(s) to target "%s": %s', len(batch.alerts), self.target.name, names)
        self._settle(batch)

    def _settle(self, batch: AlertBatch) -> None:
        self.queue.settle(self.target.name, batch.rows)
        self._settling = None

    def _failed(self, batch: AlertBatch, outcome: DeliveryOutcome) -> None:
        self.counts.failed_attempts += 1
        now = self.clock.monotonic()
        reason = outcome.reason
        if outcome.verdict is Verdict.TARGET_FAILED:
            self._failures += 1
            delay = max(self._backoff_s(self._failures), outcome.retry_after_s or 0.0)
            self._not_before = now + delay
            level = logging.WARNING if self._failures == 1 else logging.INFO
            _log.log(level, 'target "%s" failed: %s; retrying in %.0f s', self.target.name, reason, delay)
            return
        self._failures = 0
        if len(batch.rows) > 1:
            _log.warning('target "%s" rejected a message: %s; sending its alerts one by one', self.target.name, reason)
            self.queue.split(batch.rows)
            return
        failures = self._rejected.pop(batch.number, _Postponed(0, 0.0)).failures + 1
        name = batch.alerts[0].name
        if self.clock.unix() - batch.accepted_at >= self.give_up_s:
            _log.error('target "%s" rejected alert "%s": %s; giving up', self.target.name, name, reason)
            self.counts.given_up += 1
            self._settling = batch
            self._settle(batch)
            return
        delay = self._backoff_s(failures)
        self._rejected[batch.number] = _Postponed(failures, now + delay)
        message = 'target "%s" rejected alert "%s": %s; retrying in %.0f s'
        _log.warning(message, self.target.name, name, reason, delay)

    def _backoff_s(self, failures: int) -> float:
        return backoff_s(failures, _FIRST_BACKOFF_S, _MAX_BACKOFF_S, self.clock.jitter())


class DeliveryThread:
    """Runs a delivery in a thread. Life: `start` → `wake` for new alerts → `stop` → `join`."""

    def __init__(self, delivery: TargetDelivery) -> None:
        self.delivery = delivery
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"conch-alerts-{delivery.target.name}", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def wake(self) -> None:
        """Look at the queue again: it has new alerts."""
        self._wake.set()

    def stop(self) -> None:
        """Stop after the message that is being sent."""
        self._stopping = True
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; return whether it did in time."""
        self._thread.join(max(timeout_s, 0.0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                wait = self.delivery.step()
            except Exception:
                target = self.delivery.target
                block = redact(traceback.format_exc(), target.secrets())
                _log.error('delivery to target "%s" failed; continuing', target.name, extra={"block": block})
                wait = _DISK_RETRY_S
            if not self._stopping:
                self._wake.wait(min(wait, _MAX_IDLE_S))
