"""A whole server without ports, and connections to it without sockets: what fuzzing needs to be fast and to see inside.

The models are of the identity backend, which answers on the event loop, so that a case is over after a few turns of it.
"""

import asyncio
import gc
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import psutil

from conch.base.errors import ConchError
from conch.domain.tensor import Buffer
from conch.protocols.connections.body_budget import DEFAULT_LIMIT_BYTES, BodyBudget
from conch.protocols.connections.loop_budget import ParseBudget
from conch.protocols.connections.traffic import SweepClock, Traffic
from conch.protocols.http.connection import HttpConnection
from conch.protocols.http.message import HttpLimits, HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.http.server_context import ServerContext
from conch.server.frontends.endpoints import HTTP_PORT, Handlers
from conch.server.frontends.offload import jobs
from conch.server.frontends.offload.pool import Done, Job, OffloadPool, Outcome
from conch.server.frontends.parts import Parts
from conch.server.options.server_options import ServerOptions
from conch.server.server import Server
from tests.support.models import tensor, write_config, write_identity

# Far more than any case needs: a case that takes them all hangs.
MAX_TURNS = 2_000
# For a worker process to start and to do a job of `MAX_INPUT_BYTES`.
MAX_WORKER_S = 20.0
MAX_INPUT_BYTES = 20_000
# A machine with other work needs several times as long as another one, which needs milliseconds.
MAX_BLOCKED_MS = 1000
DATATYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64", "STRING")


class InlinePool(OffloadPool):
    """Runs jobs in this process, in the next turn of the loop: an answer must not depend on another process's speed."""

    def submit(
        self,
        name: str,
        args: Mapping[str, Any],
        parts: Sequence[Buffer],
        done: Done,
        *,
        client: str,
        size: int | None = None,
    ) -> Job:
        job = Job(name, args, parts, done, client, size or 0)
        asyncio.get_running_loop().call_soon(self._run, job)
        return job

    def _run(self, job: Job) -> None:
        try:
            meta, parts = jobs.run(job.name, job.args, [memoryview(part).cast("B") for part in job.parts])
        except ConchError as error:
            job.done(error)
        else:
            job.done(Outcome(meta, [memoryview(b"".join([part])) for part in parts]))


class Finding(AssertionError):
    """The server did what it must not do."""


def write_models(root: Path) -> None:
    """Write the models that the generators ask."""
    write_identity(root, "number", "FP32", 4, batch=8)
    write_identity(root, "open", "INT32", -1)
    write_identity(root, "square", "INT16", -1, -1, batch=4)
    write_identity(root, "text", "STRING", -1, batch=4)
    write_identity(root, "raw_text", "STRING", 1)
    write_identity(root, "half", "FP16", -1)
    write_identity(root, "stream", "INT32", -1, extra="model_transaction_policy { decoupled: true }")
    write_identity(
        root,
        "queue",
        "FP32",
        4,
        batch=4,
        extra="dynamic_batching { priority_levels: 3 default_priority_level: 2 "
        "default_queue_policy { allow_timeout_override: true } }",
    )
    inputs = ", ".join(tensor(f"IN_{name}", name, -1, extra="optional: true") for name in DATATYPES)
    outputs = ", ".join(tensor(f"OUT_{name}", name, -1) for name in DATATYPES)
    write_config(root, "any", f'backend: "identity" input [{inputs}] output [{outputs}]')


class _Watch(logging.Handler):
    """Keeps what the server complains about."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(("refused to load", "refused to unload")):
            return  # what the log says of every such request, and no fault of the server
        blocked = re.match(r"event loop blocked for (\d+) ms", text)
        if blocked and int(blocked[1]) < MAX_BLOCKED_MS:
            return
        self.seen.append(logging.Formatter().format(record))


class FuzzServer:
    """The server of all cases, and the places to look for traces that they leave."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.handled: list[bytes] = []  # methods of the requests that reached the handler, in order
        self.connections: set[HttpConnection] = set()
        # How an answer is ordered must not depend on the clock here.
        self.parse_budget = ParseBudget(inf, inf)
        options = ServerOptions(http_max_input_size=MAX_INPUT_BYTES, http_header_forward_pattern="X-Forward.*")
        self._routes = Handlers(Parts(options, server.inference, server.control)).router(HTTP_PORT)
        self.context = ServerContext(
            self._handle,
            HttpLimits(body_bytes=MAX_INPUT_BYTES, head_bytes=4096, head_fields=32),
            BodyBudget(DEFAULT_LIMIT_BYTES),
            self.parse_budget,
            Traffic(),
            SweepClock(),
            body_limit=self._routes.body_limit,
            refusal=self._routes.refusal,
        )
        self._watch = _Watch()
        self._loop_errors: list[dict[str, Any]] = []

    # What a connection knows of its owner.

    def _handle(self, request: HttpRequest, reply: HttpReply) -> None:
        self.handled.append(request.method)
        self._routes(request, reply)

    def opened(self, connection: HttpConnection) -> bool:
        self.connections.add(connection)
        return True

    def closed(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)

    # What a case may leave behind.

    def check_clean(self) -> None:
        """Raise Finding if anything is left of the cases so far, or was complained about."""
        if self._watch.seen or self._loop_errors:
            seen, self._watch.seen = self._watch.seen, []
            errors, self._loop_errors = self._loop_errors, []
            raise Finding(f"complaints: {seen} {errors}")
        if self.connections:
            raise Finding(f"connections left: {self.connections}")
        for served in self.server.inference.statistics():
            if served.pending:
                raise Finding(f"{served.pending} requests of {served.model_name} are still pending")

    def forget(self) -> None:
        """Reset after a finding."""
        self._watch.seen.clear()
        self._loop_errors.clear()
        self.handled.clear()
        for connection in tuple(self.connections):
            connection.abort()
        self.connections.clear()

    def watch(self) -> None:
        logging.getLogger().addHandler(self._watch)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self._loop_errors.append(context))

    def unwatch(self) -> None:
        logging.getLogger().removeHandler(self._watch)


@asynccontextmanager
async def fuzz_server(directory: Path) -> AsyncIterator[FuzzServer]:
    """Run a server on models written to `directory`."""
    write_models(directory)
    options = ServerOptions(model_repository=(str(directory),), allow_http=False, allow_grpc=False, allow_metrics=False)
    # As the program does, before the loop is watched: a collection of what other tests left would stall it.
    gc.collect()
    gc.freeze()
    async with Server(options).running() as server:
        if not server.inference.ready():
            raise Finding(f"the models did not come up: {server.control.index(ready_only=False)}")
        place = FuzzServer(server)
        place.watch()
        try:
            yield place
        finally:
            place.unwatch()


async def settle(done: Callable[[], bool]) -> None:
    """Turn the loop until `done`. Raises Finding if it never is.

    What a worker process reads or writes takes time, however often the loop turns.
    """
    for _ in range(MAX_TURNS):
        if done():
            return
        await asyncio.sleep(0)
    deadline = monotonic() + MAX_WORKER_S
    while monotonic() < deadline:
        if done():
            return
        await asyncio.sleep(0.001)
    raise Finding("hangs")


def resident_bytes() -> int:
    """Return the memory that this process holds."""
    return int(psutil.Process().memory_info().rss)
