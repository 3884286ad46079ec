"""The receiver: webhooks, /metrics and /-/healthy over HTTP, and the deliveries of the targets."""

import asyncio
import base64
import binascii
import hmac
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from conch.base.errors import InvalidRequest
from conch.base.logs import LogSettings, ServerLogHandler
from conch.base.process.stop_signals import stop_signals
from conch.domain.exposition import Family, Point, render
from conch.domain.metrics.catalog import all_metrics
from conch.operate.alerts.configuration import ReceiverConfig
from conch.operate.alerts.delivery import DeliveryThread, TargetDelivery
from conch.operate.alerts.posting import HttpPoster
from conch.operate.alerts.queue import Accepted, AlertQueue, QueueEntry
from conch.operate.alerts.webhook import read_webhook
from conch.protocols.connections.body_budget import BodyBudget
from conch.protocols.connections.listener import raise_file_limit
from conch.protocols.http.message import HttpLimits, HttpRefusal, HttpRequest, content_type, header
from conch.protocols.http.reply import HttpReply
from conch.protocols.http.server import HttpServer

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
        """`wake` is called with the name of a target that has new alerts; `executor` has one thread."""
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
        yield _family("conch_alerts_received_total", {"": self._received})
        yield _family("conch_alerts_duplicates_total", {name: self._duplicates[name] for name in counts})
        yield _family("conch_alerts_unrouted_total", {"": self._unrouted})
        yield _family("conch_alerts_refused_webhooks_total", dict(self._refused))
        yield _family("conch_alerts_delivered_total", {name: count.delivered for name, count in counts.items()})
        yield _family(
            "conch_alerts_failed_attempts_total", {name: count.failed_attempts for name, count in counts.items()}
        )
        yield _family("conch_alerts_given_up_total", {name: count.given_up for name, count in counts.items()})
        yield _family("conch_alerts_queued", {name: queue.queued(name) for name in counts})
        yield _family("conch_alerts_oldest_queued_seconds", {name: queue.oldest_s(name) for name in counts})


def _family(name: str, values: dict[str, int] | dict[str, float]) -> Family:
    """Return a family whose points have the metric's only label, or none."""
    labels = all_metrics()[name].labels
    return Family.of(name, [Point(value, {labels[0]: key} if labels else {}) for key, value in values.items()])


_DEFAULT_BODY_BYTES = 2**20  # larger ones have the limit below, whose message names no flag of conch serve
_MAX_BODY_BYTES = 16 * 2**20
_MAX_BODIES_BYTES = 64 * 2**20  # of all clients
_CLOSE_S = 5.0
_STOP_S = 20.0  # longer than an attempt usually takes


def run_receiver(config: ReceiverConfig, folder: Path, address: str, port: int, log_format: str) -> None:
    """Receive and deliver alerts until SIGTERM, SIGINT or SIGHUP. Raises ConfigError, OSError.

    `folder` has the queue. Port 0 is any free one.
    """
    logging.getLogger().addHandler(ServerLogHandler(LogSettings(log_format=log_format)))
    logging.getLogger("conch").setLevel(logging.INFO)
    asyncio.run(_run(config, folder, address, port))


async def _run(config: ReceiverConfig, folder: Path, address: str, port: int) -> None:
    queue = AlertQueue(folder, max_alerts=config.max_alerts, deduplicate_s=config.deduplicate_s, now=time.time)
    queue.open()
    threads = {
        target.name: DeliveryThread(TargetDelivery(target, queue, HttpPoster(target.ca_file), config.give_up_s))
        for target in config.targets.values()
    }
    executor = ThreadPoolExecutor(1, thread_name_prefix="conch-alerts-queue")
    deliveries = [thread.delivery for thread in threads.values()]
    receiver = WebhookReceiver(config, queue, deliveries, lambda name: threads[name].wake(), executor)
    server = HttpServer(
        receiver,
        address,
        port,
        limits=HttpLimits(body_bytes=_DEFAULT_BODY_BYTES),
        body_limit=lambda _: _MAX_BODY_BYTES,
        refusal=receiver.refusal,
        budget=BodyBudget(_MAX_BODIES_BYTES),
    )
    stopping = stop_signals()
    raise_file_limit()
    await server.start()
    _report_start(config, queue, address, server.port)
    for thread in threads.values():
        thread.start()
    await stopping.wait()
    _log.info("stopping; queued alerts are delivered after the next start")
    await server.stop(_CLOSE_S)
    for thread in threads.values():
        thread.stop()
    deadline = time.monotonic() + _STOP_S
    ended = [await asyncio.to_thread(thread.join, deadline - time.monotonic()) for thread in threads.values()]
    executor.shutdown()
    if all(ended):
        queue.close()


def _report_start(config: ReceiverConfig, queue: AlertQueue, address: str, port: int) -> None:
    host = f"[{address}]" if ":" in address else address
    _log.info("Started alert receiver at %s:%d for targets %s", host, port, ", ".join(config.targets))
    if address not in ("127.0.0.1", "::1", "localhost") and not (config.bearer or config.basic):
        _log.warning("webhooks are accepted from any host without credentials; configure 'auth'")
    for name in sorted(queue.targets() - set(config.targets)):
        message = 'the queue has %d alert(s) for target "%s", which is not configured; they wait until it is'
        _log.warning(message, queue.queued(name), name)
