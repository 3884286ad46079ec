"""Runs the receiver: builds its parts, starts and stops them."""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from conch.base.logs import LogSettings, ServerLogHandler
from conch.base.stop_signals import stop_signals
from conch.operate.alerts.configuration import ReceiverConfig
from conch.operate.alerts.delivery import DeliveryThread, TargetDelivery
from conch.operate.alerts.http_post import HttpPoster
from conch.operate.alerts.queue import AlertQueue
from conch.operate.alerts.receiver import WebhookReceiver
from conch.protocols.connections.body_budget import BodyBudget
from conch.protocols.connections.file_limits import raise_file_limit
from conch.protocols.http.message import HttpLimits
from conch.protocols.http.server import HttpServer

_log = logging.getLogger(__name__)

_DEFAULT_BODY_BYTES = 2**20  # larger ones have the limit below, whose message names no flag of conch serve
_MAX_BODY_BYTES = 16 * 2**20
_MAX_CONNECTIONS = 256
_MAX_BODIES_BYTES = 64 * 2**20  # of all clients
_CLOSE_S = 5.0
_STOP_S = 20.0  # longer than an attempt usually takes


class ReceiverOptions(NamedTuple):
    """Options of the command line."""

    queue: Path
    address: str
    port: int
    log_format: str


def run_receiver(config: ReceiverConfig, options: ReceiverOptions) -> None:
    """Receive and deliver alerts until SIGTERM, SIGINT or SIGHUP. Raises ConfigError, OSError."""
    logging.getLogger().addHandler(ServerLogHandler(LogSettings(log_format=options.log_format)))
    logging.getLogger("conch").setLevel(logging.INFO)
    asyncio.run(_run(config, options))


async def _run(config: ReceiverConfig, options: ReceiverOptions) -> None:
    queue = AlertQueue(options.queue, max_alerts=config.max_alerts, deduplicate_s=config.deduplicate_s, now=time.time)
    queue.open()
    threads = {
        target.name: DeliveryThread(TargetDelivery(target, queue, HttpPoster(target.ca_file), config.give_up_s))
        for target in config.targets.values()
    }
    executor = ThreadPoolExecutor(1, thread_name_prefix="conch-alerts-queue")
    deliveries = [thread.delivery for thread in threads.values()]
    receiver = WebhookReceiver(config, queue, deliveries, lambda name: threads[name].wake(), executor)
    limits = HttpLimits(connections=_MAX_CONNECTIONS, body_bytes=_DEFAULT_BODY_BYTES)
    server = HttpServer(
        receiver,
        options.address,
        options.port,
        limits=limits,
        body_limit=lambda _: _MAX_BODY_BYTES,
        refusal=receiver.refusal,
        budget=BodyBudget(_MAX_BODIES_BYTES),
    )
    stopping = stop_signals()
    raise_file_limit()
    await server.start()
    _report_start(config, options, queue, server.port)
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


def _report_start(config: ReceiverConfig, options: ReceiverOptions, queue: AlertQueue, port: int) -> None:
    host = f"[{options.address}]" if ":" in options.address else options.address
    _log.info("Started alert receiver at %s:%d for targets %s", host, port, ", ".join(config.targets))
    if options.address not in ("127.0.0.1", "::1", "localhost") and not (config.bearer or config.basic):
        _log.warning("webhooks are accepted from any host without credentials; configure 'auth'")
    for name in sorted(queue.targets() - set(config.targets)):
        message = 'the queue has %d alert(s) for target "%s", which is not configured; they wait until it is'
        _log.warning(message, queue.queued(name), name)
