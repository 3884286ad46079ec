"""The HTTP side of the receiver: webhooks, /metrics and /-/healthy."""

import asyncio
import base64
import binascii
import hmac
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor

from conch.base.errors import InvalidRequest
from conch.domain.exposition import Family, Point, render
from conch.domain.metrics import alerts as catalog
from conch.domain.metrics.metric import MetricDefinition
from conch.operate.alerts.configuration import ReceiverConfig
from conch.operate.alerts.delivery import TargetDelivery
from conch.operate.alerts.notification import read_webhook
from conch.operate.alerts.queue import Accepted, AlertQueue, QueueEntry
from conch.protocols.http.message import HttpRefusal, HttpRequest, content_type, header
from conch.protocols.http.reply import HttpReply

_log = logging.getLogger(__name__)

_TEXT = content_type(b"text/plain; charset=utf-8")
_EXPOSITION = content_type(b"text/plain; version=0.0.4; charset=utf-8")
_RETRY_AFTER = header(b"Retry-After", b"30")
_REASONS = ("unauthorized", "malformed", "queue_full", "storage")
_HEALTH = ("/-/healthy", "/-/ready")


class WebhookReceiver:
    """Handler of the HTTP server. A webhook is answered with 200 when its alerts are stored durably."""

    def __init__(
        self,
        config: ReceiverConfig,
        queue: AlertQueue,
        deliveries: Sequence[TargetDelivery],
        wake: Callable[[str], None],
        executor: Executor,
    ) -> None:
        """Assign. `wake` is called with the name of a target that has new alerts; `executor` has one thread."""
        self._config = config
        self._queue = queue
        self._deliveries = deliveries
        self._wake = wake
        self._executor = executor
        self._received = self._unrouted = 0
        self._duplicates = Counter[str]()
        self._refused = Counter(dict.fromkeys(_REASONS, 0))
        self._tasks = set[asyncio.Task[None]]()
        self._disk_failing = False

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if it is answered."""
        if request.path == "/":
            if request.method != b"POST":
                return HttpRefusal(405, "webhooks are sent by POST", header(b"Allow", b"POST"))
            if not self._authorized(request):
                self._refused["unauthorized"] += 1
                challenge = b"Bearer" if self._config.bearer else b'Basic realm="conch alerts"'
                return HttpRefusal(401, "credentials are missing or wrong", header(b"WWW-Authenticate", challenge))
            return None
        if request.path not in ("/metrics", *_HEALTH):
            return HttpRefusal(404, "not found; webhooks are sent to /")
        return None if request.method in (b"GET", b"HEAD") else HttpRefusal(405, "only GET", header(b"Allow", b"GET"))

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        refusal = self.refusal(request)  # without a body, or with one that came with the head, it was not called
        if refusal is not None:
            reply.send(refusal.status, *refusal.content())
        elif request.path in _HEALTH:
            reply.send(200, _TEXT, b"Healthy.\n")
        elif request.path == "/metrics":
            self._begin(self._send_metrics(reply))
        else:
            self._receive(bytes(request.body), reply)

    def _receive(self, body: bytes, reply: HttpReply) -> None:
        try:
            alerts = read_webhook(body)
        except InvalidRequest as error:
            self._refused["malformed"] += 1
            reply.send(400, _TEXT, f"{error}\n".encode())
            return
        unrouted = [alert.name for alert in alerts if not self._config.routed(alert)]
        if unrouted:
            _log.warning('no route matches %d alert(s), such as "%s"', len(unrouted), unrouted[0])
        entries = [
            QueueEntry(target.name, target.grouping(alert), alert)
            for alert in alerts
            for target in self._config.targets_of(alert)
        ]
        self._begin(self._store(entries, len(alerts), len(unrouted), reply))

    async def _store(self, entries: Sequence[QueueEntry], alerts: int, unrouted: int, reply: HttpReply) -> None:
        loop = asyncio.get_running_loop()
        try:
            accepted = await loop.run_in_executor(self._executor, self._queue.accept, entries)
        except sqlite3.Error as error:
            self._refused["storage"] += 1
            if not self._disk_failing:
                text = "queue cannot be written: %s; webhooks are refused until it can, Alertmanager will retry"
                _log.error(text, error)
            self._disk_failing = True
            reply.send(503, _TEXT + _RETRY_AFTER, b"the queue cannot be written; try again later\n")
            return
        if self._disk_failing:
            _log.info("queue can be written again")
        self._disk_failing = False
        self._duplicates.update(accepted.duplicates)
        for target in accepted.new:
            self._wake(target)
        if accepted.full:
            self._refuse_full(accepted, reply)
            return
        self._received += alerts
        self._unrouted += unrouted
        reply.send(200, _TEXT, b"accepted\n")

    def _refuse_full(self, accepted: Accepted, reply: HttpReply) -> None:
        """Answer 503. What other targets got is stored; a retry finds it to be a duplicate."""
        self._refused["queue_full"] += 1
        names = ", ".join(accepted.full)
        _log.error('queue of target(s) "%s" is full; webhook refused, Alertmanager will retry', names)
        reply.send(503, _TEXT + _RETRY_AFTER, f"the queue of {names} is full; try again later\n".encode())

    async def _send_metrics(self, reply: HttpReply) -> None:
        text = await asyncio.get_running_loop().run_in_executor(self._executor, lambda: render(self.families()))
        reply.send(200, _EXPOSITION, text)

    def _begin(self, answer: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(answer)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _authorized(self, request: HttpRequest) -> bool:
        """Return whether the credentials are right. Comparisons take the same time for all values."""
        config = self._config
        scheme, _, given = request.headers.get(b"authorization", b"").partition(b" ")
        try:
            if config.bearer is not None:
                expected = config.bearer.read().encode()
                return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), expected)
            if config.basic is not None:
                pair = f"{config.basic.username}:{config.basic.password.read()}".encode()
                decoded = base64.b64decode(given.strip(), validate=True)
                return scheme.lower() == b"basic" and hmac.compare_digest(decoded, pair)
        except binascii.Error:
            return False
        except OSError:
            _log.error("the credentials for webhooks cannot be read; webhooks are refused")
            return False
        return True

    def families(self) -> Iterator[Family]:
        """Yield the metrics. Reads the queue: not on the event loop's thread."""
        counts = {delivery.target.name: delivery.counts for delivery in self._deliveries}
        queue = self._queue
        yield _family(catalog.ALERTS_RECEIVED, {"": self._received})
        yield _family(catalog.ALERTS_DUPLICATES, {name: self._duplicates[name] for name in counts})
        yield _family(catalog.ALERTS_UNROUTED, {"": self._unrouted})
        yield _family(catalog.ALERTS_REFUSED_WEBHOOKS, dict(self._refused))
        yield _family(catalog.ALERTS_DELIVERED, {name: each.delivered for name, each in counts.items()})
        yield _family(catalog.ALERTS_FAILED_ATTEMPTS, {name: each.failed_attempts for name, each in counts.items()})
        yield _family(catalog.ALERTS_GIVEN_UP, {name: each.given_up for name, each in counts.items()})
        yield _family(catalog.ALERTS_QUEUED, {name: queue.queued(name) for name in counts})
        yield _family(catalog.ALERTS_OLDEST_QUEUED, {name: queue.oldest_s(name) for name in counts})


def _family(metric: MetricDefinition, values: dict[str, int] | dict[str, float]) -> Family:
    """Return a family whose points have the metric's only label, or none."""
    points = [Point(value, {metric.labels[0]: name} if metric.labels else {}) for name, value in values.items()]
    return Family(metric.name, metric.kind, metric.help, points)
