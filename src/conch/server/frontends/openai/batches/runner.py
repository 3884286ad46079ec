"""Runs the requests of batches while clients have none.

The server is idle when models have had no other request for longer than 99.8 % of the last intervals between requests
of clients, so that about one in 500 of these meets a batch. Then up to `MAX_IN_FLIGHT` requests run, first
one and twice as many after each success. A client's request of any model, over any protocol, aborts them at its
admission; they run again later. Requests that the server refuses for lack of room or for a limit are repeated too.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from time import monotonic
from typing import Any, TypeVar
from uuid import uuid4

from conch.base.errors import ConchError
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.recorded_reply import RecordedReply
from conch.protocols.http.reply import HttpReply
from conch.protocols.http.router import Route
from conch.protocols.openai.batches import MAX_LINE_BYTES, MAX_LINES, BatchLine, answered, read_line, unanswered
from conch.protocols.openai.fields import InvalidField
from conch.server.core.inference import Inference
from conch.server.frontends.openai.batches.store import BatchStore, RequestBatch, Status

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

MIN_QUIET_S, MAX_QUIET_S = 1.0, 300.0
_INTERVALS = 1000  # between requests of clients that are known
_ONE_IN = 500  # requests of clients may come while a batch runs
MAX_IN_FLIGHT = 16
_POLL_S = 0.1  # while others have requests
_TURN_LINES = 64  # of a batch before the next one's turn
_REPEATED = frozenset({429, 503})
_REPEAT_S = 5.0
_CLEAN_UP_S = 60.0
_MAX_ERRORS = 100


@dataclass(slots=True)
class _Progress:
    """How far a batch is: the place in its input, which lines have results, and those to repeat."""

    offset: int = 0
    number: int = 0  # of the next line, from 0
    done: set[int] = field(default_factory=set)
    repeated: deque[tuple[int, BatchLine]] = field(default_factory=deque)
    not_before: float = 0.0  # monotonic


class _Run:
    """One request in flight."""

    def __init__(self, number: int, line: BatchLine, ended: Callable[["_Run"], None]) -> None:
        self.number = number
        self.line = line
        self.status = 0  # 0 until it is answered
        self.body = b""
        self.reply: HttpReply | None = None
        self._ended = ended

    def answered(self, status: int, _head: bytes, body: bytes) -> None:
        """Take the answer."""
        self.status, self.body = status, body
        self._ended(self)

    def interrupt(self) -> None:
        """Abort the request."""
        if self.reply is not None and self.reply.open:
            self.reply.disconnect()
            self._ended(self)


class BatchRunner:
    """Life: `open` → `routes` is set → `start` → `stop`. Belongs to the event loop's thread."""

    def __init__(self, store: BatchStore, inference: Inference) -> None:
        self.store = store
        self.routes: Mapping[str, Route] = {}  # by the endpoints that a batch may have
        self._inference = inference
        self._thread = ThreadPoolExecutor(1, "batches")  # the only one that writes
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._progress: dict[str, _Progress] = {}
        self._running: set[_Run] = set()
        self._ended: list[_Run] = []
        self._submitting = False
        self._last_request = 0.0  # of a client, monotonic
        self._intervals: deque[float] = deque(maxlen=_INTERVALS)
        self._most = 1  # requests in flight

    async def open(self) -> None:
        """Read the folder. Raises ConfigError."""
        await self.blocking(self.store.open)

    def start(self) -> None:
        """Run batches from now on."""
        self._inference.on_request = self._on_request
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Abort what runs, and keep the results so far."""
        if self._task is not None:
            self._inference.on_request = None
            self._task.cancel()
            self._interrupt()
            await asyncio.wait([self._task])
        await self.blocking(self.store.close)
        self._thread.shutdown()

    async def blocking(self, work: Callable[..., _T], *args: Any) -> _T:
        """Run a method of the store in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args))

    def wake(self) -> None:
        """Look at the batches: one is new or is to be cancelled."""
        self._wake.set()

    def _on_request(self) -> None:
        """Yield to a client's request, before a model gets it."""
        if not self._submitting:
            now = monotonic()
            if self._last_request:
                self._intervals.append(now - self._last_request)
            self._last_request = now
            if self._running:
                self._most = 1
                self._interrupt()

    def _interrupt(self) -> None:
        for run in list(self._running):
            run.interrupt()

    def _is_idle(self) -> bool:
        if self._running:
            return True  # else they had been aborted
        longest = nlargest(len(self._intervals) // _ONE_IN + 1, self._intervals) or [0.0]
        quiet_s = min(max(longest[-1], MIN_QUIET_S), MAX_QUIET_S)
        return self._inference.idle and monotonic() - self._last_request >= quiet_s

    async def _run(self) -> None:
        """Give tenants turns, and a tenant's batches in its turns."""
        cleaned, turn = 0.0, 0
        while True:
            try:
                if monotonic() - cleaned > _CLEAN_UP_S:
                    cleaned = monotonic()
                    await self.blocking(self.store.delete_expired)
            except OSError as error:
                _log.warning("cannot delete expired files of batches: %s", error)
            active: dict[str, list[RequestBatch]] = {}
            for batch in list(self.store.batches.values()):
                if not batch.ended:
                    active.setdefault(batch.owner, []).append(batch)
            turn += 1
            for batches in active.values():
                await self._take_turn(batches[turn % len(batches)])
            if not active:
                self._wake.clear()
                await self._waited(_CLEAN_UP_S)

    async def _take_turn(self, batch: RequestBatch) -> None:
        try:
            if batch.status == "cancelling":
                await self._end(batch, "cancelled")
            elif batch.expires_at <= self.store.clock.now_s():
                await self._expire(batch)
            elif batch.id not in self._progress:
                await self._begin(batch)
            else:
                await self._execute(batch, self._progress[batch.id])
        except Exception as error:
            if not isinstance(error, OSError | ConchError):
                _log.exception("batch '%s' failed unexpectedly", batch.id)
            text = error.message if isinstance(error, ConchError) else f"the server cannot store results: {error}"
            await self._fail(batch, [{"code": "server_error", "message": text, "line": None, "param": None}])

    async def _begin(self, batch: RequestBatch) -> None:
        """Validate the input, and find what has been done before a restart."""
        progress = _Progress()
        total, errors = await self.blocking(self._validate, batch)
        if errors:
            await self._fail(batch, errors)
            return
        batch.total = total
        batch.completed = batch.failed = 0
        for number, successful in await self.blocking(lambda: list(self.store.results(batch))):
            self._count(batch, progress, number, successful)
        if batch.status == "validating":
            batch.become("in_progress")
        await self.blocking(self.store.save, batch)
        self._progress[batch.id] = progress

    def _validate(self, batch: RequestBatch) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of lines, and what is wrong."""
        errors: list[dict[str, Any]] = []
        ids: set[str] = set()
        number = 0
        with self.store.content(batch.input_file_id).open("rb") as file:
            while len(errors) < _MAX_ERRORS and (line := file.readline(MAX_LINE_BYTES + 2)):
                number += 1
                try:
                    if number > MAX_LINES:
                        raise InvalidField(None, f"a batch may have {MAX_LINES} lines at most")
                    read = read_line(line.rstrip(b"\r\n"), batch.endpoint)
                    if read.custom_id in ids:
                        raise InvalidField("custom_id", f"the custom_id '{read.custom_id}' is not unique")
                    ids.add(read.custom_id)
                except InvalidField as error:
                    errors.append(
                        {"code": "invalid_json_line", "message": error.message, "line": number, "param": error.param}
                    )
                    if number > MAX_LINES or not line.endswith(b"\n"):
                        break
        if not number:
            errors.append({"code": "empty_file", "message": "the input file has no lines", "line": None, "param": None})
        return number, errors

    async def _execute(self, batch: RequestBatch, progress: _Progress) -> None:
        """Run some lines, unless clients have requests."""
        if not self._is_idle() or progress.not_before > monotonic():
            await asyncio.sleep(_POLL_S)
            return
        waiting = deque(progress.repeated)
        progress.repeated.clear()
        waiting.extend(await self.blocking(self._read_lines, batch, progress, _TURN_LINES - len(waiting)))
        if not waiting:
            await self._end(batch, "completed")
            return
        while waiting or self._running or self._ended:
            over = batch.status == "cancelling" or batch.expires_at <= self.store.clock.now_s()
            if over:
                self._interrupt()
            if over or progress.not_before > monotonic():
                progress.repeated.extend(waiting)
                waiting.clear()
            elif self._is_idle():
                while waiting and len(self._running) < self._most:
                    self._submit(batch, *waiting.popleft())
            self._wake.clear()
            if not self._ended:
                await self._waited(_CLEAN_UP_S if self._running else _POLL_S)
            await self._collect(batch, progress, waiting)

    async def _waited(self, limit_s: float) -> None:
        """Wait until something happens, or for the limit."""
        try:
            async with asyncio.timeout(limit_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _read_lines(self, batch: RequestBatch, progress: _Progress, most: int) -> list[tuple[int, BatchLine]]:
        """Return the next lines without results."""
        lines: list[tuple[int, BatchLine]] = []
        with self.store.content(batch.input_file_id).open("rb") as file:
            file.seek(progress.offset)
            while len(lines) < most and (line := file.readline(MAX_LINE_BYTES + 2)):
                if progress.number not in progress.done:
                    lines.append((progress.number, read_line(line.rstrip(b"\r\n"), batch.endpoint)))
                progress.number += 1
                progress.offset += len(line)
        return lines

    def _submit(self, batch: RequestBatch, number: int, line: BatchLine) -> None:
        """Call the handler of the endpoint, as a client of the owner would."""
        route = self.routes[batch.endpoint]
        run = _Run(number, line, self._on_end)
        request = HttpRequest(b"POST", batch.endpoint, [(b"content-type", b"application/json")])
        request.body, request.tenant = line.body, batch.owner
        run.reply = reply = HttpReply(RecordedReply(run.answered), request)
        self._running.add(run)
        self._submitting = True
        try:
            route.answer(request, reply)
        except ConchError as error:
            route.form.send(request, reply, error)
        finally:
            self._submitting = False

    def _on_end(self, run: _Run) -> None:
        if run in self._running:
            self._running.discard(run)
            self._ended.append(run)
            self._wake.set()

    async def _collect(self, batch: RequestBatch, progress: _Progress, waiting: deque[tuple[int, BatchLine]]) -> None:
        """Write the results of requests that have ended; others wait again."""
        ended, self._ended = self._ended, []
        results: dict[str, bytes] = {}
        for run in ended:
            if not run.status:
                waiting.appendleft((run.number, run.line))
            elif run.status in _REPEATED:
                progress.repeated.append((run.number, run.line))
                progress.not_before = monotonic() + _REPEAT_S
            else:
                successful = run.status < 400
                self._most = min(2 * self._most, MAX_IN_FLIGHT) if successful else self._most
                file_id = batch.output_id if successful else batch.error_id
                line = answered(_line_id(batch, run.number), run.line.custom_id, run.status, uuid4().hex, run.body)
                results[file_id] = results.get(file_id, b"") + line
        for file_id, lines in results.items():
            await self.blocking(self.store.append, batch, file_id, lines)
        for run in ended:
            if run.status and run.status not in _REPEATED:
                self._count(batch, progress, run.number, run.status < 400)

    @staticmethod
    def _count(batch: RequestBatch, progress: _Progress, number: int, successful: bool) -> None:
        if number not in progress.done:
            progress.done.add(number)
            batch.completed += successful
            batch.failed += not successful

    async def _expire(self, batch: RequestBatch) -> None:
        """End a batch whose time is over; requests without an answer get an error."""
        progress = self._progress.get(batch.id)
        text = "This request could not be executed before the completion window expired."
        if progress is not None:
            rest = _Progress(done=progress.done)
            while lines := await self.blocking(self._read_lines, batch, rest, _TURN_LINES):
                written = [
                    unanswered(_line_id(batch, number), line.custom_id, "batch_expired", text) for number, line in lines
                ]
                await self.blocking(self.store.append, batch, batch.error_id, b"".join(written))
                batch.failed += len(lines)
        await self._end(batch, "expired")

    async def _fail(self, batch: RequestBatch, errors: list[dict[str, Any]]) -> None:
        self._interrupt()
        self._ended.clear()
        batch.errors = errors
        _log.warning("batch '%s' failed: %s", batch.id, errors[0]["message"])
        try:
            await self._end(batch, "failed")
        except OSError as error:
            batch.become("failed")
            _log.error("the state of batch '%s' cannot be stored: %s", batch.id, error)

    async def _end(self, batch: RequestBatch, status: Status) -> None:
        self._progress.pop(batch.id, None)
        if status != "failed":
            batch.become("finalizing")
        await self.blocking(self.store.close_results, batch)
        batch.become(status)
        await self.blocking(self.store.save, batch)


def _line_id(batch: RequestBatch, number: int) -> str:
    return f"batch_req_{batch.id.removeprefix('batch_')}-{number}"
