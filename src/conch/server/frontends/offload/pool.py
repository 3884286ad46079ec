"""Worker processes for codecs, each driven by a thread that copies messages in and out.

The event loop hands a job over with one queue operation and gets its outcome by one callback. Clients take turns, and
one worker stays for small jobs: see `fair_queue`. A thread starts its process at the first job. Pure Python in a thread
would compete for the interpreter lock, and a C call on 64 MB of JSON holds it for seconds: hence processes.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from conch.base.errors import ConchError, InvalidRequest, TooLarge, Unavailable
from conch.domain.tensor import Buffer
from conch.server.frontends.offload.fair_queue import FairQueue
from conch.server.frontends.offload.jobs import restore
from conch.server.frontends.offload.wire import READY, FrameTooLarge, WorkerConnection, WorkerWireError

_log = logging.getLogger(__name__)

MAX_WAITING_JOBS = 1024
MAX_JOB_S = 60.0
# Processor time of a job: a legitimate message takes up to 0.4 s for a MiB on a slow machine.
BASE_CPU_S = 5.0
CPU_S_PER_BYTE = 1.0 / 2**20
MAX_WORKER_MEMORY_BYTES = 6 * 2**30
_START_TIMEOUT_S = 60.0
# The interval of checks for an idle process that has died.
_CHECK_INTERVAL_S = 2.0
# What a worker needs of the server's environment: nothing that may be a secret.
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "VIRTUAL_ENV")


class Outcome(NamedTuple):
    """The result of a job: a JSON object and buffers."""

    meta: Mapping[str, Any]
    parts: Sequence[memoryview]


# Called once on the event loop; must not raise.
Done: TypeAlias = Callable[[Outcome | ConchError], None]


def _ignore(_outcome: Outcome | ConchError) -> None:
    """Drop an outcome that nothing waits for."""


class Job:
    """One job, from `OffloadPool.submit` to its outcome."""

    __slots__ = ("args", "cancelled", "client", "done", "name", "parts", "size")

    def __init__(
        self, name: str, args: Mapping[str, Any], parts: Sequence[Buffer], done: Done, client: str, size: int
    ) -> None:
        self.name = name
        self.client = client
        self.size = size
        self.args = args
        self.parts = parts
        self.done = done
        self.cancelled = False

    def cancel(self) -> None:
        """Skip the job if it has not begun. `done` is called all the same."""
        self.cancelled = True

    def release(self) -> None:
        """Drop references after the job is done."""
        self.parts = ()
        self.done = _ignore


def default_workers() -> int:
    """Return how many workers a pool has by default: one for each processor, from two to four."""
    return max(2, min(os.cpu_count() or 1, 4))


class OffloadPool:
    """Runs jobs in up to `workers` processes. All methods belong to the event loop's thread.

    A job that takes longer than `limit_s`, or more processor time than its size allows, ends its process and fails with
    `refusal` and the text `too_slow`. A process that has had nothing
    to do for `idle_s` ends; None keeps it.
    """

    def __init__(
        self,
        name: str,
        *,
        workers: int = 0,
        limit_s: float = MAX_JOB_S,
        idle_s: float | None = 60.0,
        memory_bytes: int = MAX_WORKER_MEMORY_BYTES,
        niceness: int = 5,
        too_slow: str = "the message takes too long to read or write",
        refusal: type[InvalidRequest] = TooLarge,
    ) -> None:
        """Create a pool. `workers` 0 means one for each processor, from two to four.

        Positive `niceness` puts the event loop first where processors are short.
        """
        self._name = name
        self._max_workers = workers or default_workers()
        self.limit_s = limit_s
        self.idle_s = idle_s
        self.arguments = [str(memory_bytes), str(niceness)]
        self.too_slow = too_slow
        self.refusal = refusal
        self.jobs: FairQueue[Job] = FairQueue(self._max_workers)
        self._threads: list[_WorkerThread] = []
        self._outstanding = 0
        self._stopped = False

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
        """Run a job of `jobs` on these buffers, which must not change, for this client (see `request_headers`).

        `size` is what the job may have to read, in bytes; by default the size of its parts. Raises Unavailable if too
        many wait, and most of them for this client; a job of a client with more of them makes room otherwise.
        """
        if self._stopped:
            raise Unavailable("stopping")
        if self._outstanding >= MAX_WAITING_JOBS:
            evicted = self.jobs.evict(client)
            if evicted is None:
                raise _too_many()
            self.deliver(evicted, _too_many())
        job = Job(name, args, parts, done, client, sum(map(len, parts)) if size is None else size)
        self._outstanding += 1
        if self._outstanding > len(self._threads) < self._max_workers:
            self._start_thread()
        self.jobs.put(job)
        return job

    async def run(self, name: str, args: Mapping[str, Any], parts: Sequence[Buffer], *, client: str) -> Outcome:
        """Run a job and wait for its outcome. Raises ConchError."""
        outcome: asyncio.Future[Outcome | ConchError] = asyncio.get_running_loop().create_future()

        def done(result: Outcome | ConchError) -> None:
            if not outcome.done():
                outcome.set_result(result)

        self.submit(name, args, parts, done, client=client)
        result = await outcome
        if isinstance(result, ConchError):
            try:
                raise result
            finally:
                del result, outcome  # else the error would refer to itself by its traceback
        return result

    def warm(self) -> None:
        """Start one process before there is a job for it."""
        if not self._threads and not self._stopped:
            self.submit("nothing", {}, (), lambda _: None, client="")

    async def stop(self) -> None:
        """End all processes. Jobs that have not ended fail."""
        self._stopped = True
        self.jobs.close()
        for thread in self._threads:
            thread.kill()
        threads, self._threads = self._threads, []
        await asyncio.gather(*(asyncio.to_thread(thread.join, 5.0) for thread in threads))
        for job in self.jobs.drain():
            self.deliver(job, Unavailable("the server is stopping"))

    def _start_thread(self) -> None:
        name = f"{self._name} worker {len(self._threads)}"
        thread = _WorkerThread(name, self, asyncio.get_running_loop())
        self._threads.append(thread)
        thread.start()

    def deliver(self, job: Job, outcome: Outcome | ConchError) -> None:
        """Call back for a job that has ended. On the event loop."""
        self._outstanding -= 1
        try:
            job.done(outcome)
        except Exception:
            _log.exception('the callback of job "%s" in pool "%s" failed', job.name, self._name)
        # Callers keep the job to cancel it, and the job refers to them: the cycle would keep the message in memory.
        job.release()
        if isinstance(outcome, ConchError):
            # If it was raised, its traceback refers to frames that refer to it: a cycle.
            outcome.__traceback__ = None


class _WorkerThread(threading.Thread):
    """Runs jobs in its process, one at a time."""

    def __init__(self, name: str, pool: OffloadPool, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name=name, daemon=True)
        self._pool = pool
        self._jobs = pool.jobs
        self._loop = loop
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: WorkerConnection | None = None
        self._killed = threading.Event()

    def run(self) -> None:
        """Run jobs until the queue is closed."""
        idle_since = monotonic()
        while not self._jobs.closed:
            job = self._jobs.get(_CHECK_INTERVAL_S if self._process is not None else None)
            if job is None:
                if self._has_died() or (
                    self._pool.idle_s is not None and monotonic() - idle_since >= self._pool.idle_s
                ):
                    self._drop_process()
                continue
            began = monotonic()
            outcome = self._outcome(job)
            self._jobs.done(job, monotonic() - began)
            with suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._pool.deliver, job, outcome)
            del job, outcome
            idle_since = monotonic()
        self._drop_process()

    def kill(self) -> None:
        """End the process; called by another thread."""
        self._killed.set()
        process = self._process
        if process is not None:
            process.kill()

    def _outcome(self, job: Job) -> Outcome | ConchError:
        if job.cancelled or self._killed.is_set():
            return Unavailable("cancelled")
        cpu_s = min(self._pool.limit_s, BASE_CPU_S + job.size * CPU_S_PER_BYTE)
        try:
            connection = self._connected()
            connection.deadline = monotonic() + self._pool.limit_s
            connection.send({"job": job.name, "args": job.args, "cpu_s": cpu_s}, job.parts)
            head, parts = connection.receive()
        except FrameTooLarge:
            return InvalidRequest("a text of the message is too long")
        except TimeoutError:
            self._drop_process()
            return self._pool.refusal(f"{self._pool.too_slow}: more than {self._pool.limit_s:g} s")
        except (OSError, WorkerWireError, ValueError, KeyError, TypeError) as error:
            status = self._drop_process()
            if self._killed.is_set():
                return Unavailable("the server is stopping")
            if status == -signal.SIGXCPU:
                return self._pool.refusal(f"{self._pool.too_slow}: more than {cpu_s:.0f} s of processor time")
            _log.error(
                'process "%s" failed in job "%s": %s (exit status %s); the next job starts another process',
                self.name,
                job.name,
                error,
                status,
            )
            return ConchError("the worker process for large messages failed")
        if "error" in head:
            return restore(head["error"])
        return Outcome(head["meta"], parts)

    def _has_died(self) -> bool:
        """Whether the process has ended by itself, as one that was killed while it was idle."""
        return self._process is not None and self._process.poll() is not None

    def _connected(self) -> WorkerConnection:
        if self._has_died():  # which must not cost the next job
            self._drop_process()
        if self._connection is not None:
            return self._connection
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "conch.server.frontends.offload.worker", str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*command, *self._pool.arguments],
                stdin=subprocess.DEVNULL,
                env=_environment(),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        connection = self._connection = WorkerConnection(ours)
        if self._killed.is_set():  # before there was a process to kill
            raise WorkerWireError("stopped")
        connection.deadline = monotonic() + _START_TIMEOUT_S
        if connection.take_byte() != READY:
            raise WorkerWireError("the worker process did not start")
        return connection

    def _drop_process(self) -> int | None:
        connection, self._connection = self._connection, None
        process, self._process = self._process, None
        if connection is not None:
            connection.close()
        if process is None:
            return None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _too_many() -> Unavailable:
    return Unavailable("too many large messages are queued; try again later", retry_after_s=1.0)


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # One thread of numpy's: what is computed here is parsing.
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
