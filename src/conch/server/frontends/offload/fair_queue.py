"""A queue of jobs that is fair between clients: start-time fair queuing in seconds of worker time, with two lanes.

Small jobs have a lane that large ones cannot fill: at least one worker stays for them. Within the lanes the client
whose jobs have used the least time is next, so that the cost of one client's jobs delays that client.
"""

import threading
from collections import deque
from time import monotonic
from typing import Generic, Protocol, TypeVar

# Jobs with more bytes are large.
LARGE_JOB_BYTES = 2**20
# Time that a job is expected to take, until it has been measured.
_EXPECTED_S = 0.01
_EXPECTED_S_PER_BYTE = 0.3 / 2**20
# Idle clients whose used time is remembered.
_MAX_IDLE_CLIENTS = 256


class Queued(Protocol):
    """A job in the queue: `client` names its owner, `size` is what it may have to read or write, in bytes."""

    @property
    def client(self) -> str:
        """Whose job it is."""

    @property
    def size(self) -> int:
        """The bytes that it may have to read or write."""


_J = TypeVar("_J", bound=Queued)


class _Client(Generic[_J]):
    """Jobs of one client that wait, and the virtual time at which its next one may start."""

    __slots__ = ("large", "running", "small", "start")

    def __init__(self, start: float) -> None:
        self.start = start
        self.small: deque[_J] = deque()
        self.large: deque[_J] = deque()
        self.running = 0

    @property
    def waiting(self) -> int:
        return len(self.small) + len(self.large)


class FairQueue(Generic[_J]):
    """Jobs between the event loop and the threads of `workers` processes. Thread-safe."""

    def __init__(self, workers: int) -> None:
        self._max_large = max(workers - 1, 1)
        self._large_running = 0
        self._virtual_s = 0.0
        self._clients: dict[str, _Client[_J]] = {}
        self._waiting = 0
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self._waiting

    def put(self, job: _J) -> None:
        """Queue a job."""
        with self._changed:
            client = self._clients.get(job.client)
            if client is None:
                client = self._clients[job.client] = _Client(self._virtual_s)
            if not client.waiting and not client.running:
                client.start = max(client.start, self._virtual_s)
            (client.large if job.size > LARGE_JOB_BYTES else client.small).append(job)
            self._waiting += 1
            self._changed.notify()

    def get(self, timeout_s: float | None) -> _J | None:
        """Remove and return the next job, to be passed to `done`; None after the timeout, or if the queue is closed."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        with self._changed:
            while not self._closed:
                job = self._next()
                if job is not None:
                    return job
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(left)
        return None

    def done(self, job: _J, seconds: float) -> None:
        """Charge the time that a job took to its client, and let a large job that waited for it start."""
        with self._changed:
            client = self._clients.get(job.client)
            if client is None:  # drained meanwhile
                return
            client.start += seconds - _expected_s(job)
            client.running -= 1
            if job.size > LARGE_JOB_BYTES:
                self._large_running -= 1
                self._changed.notify()
            if len(self._clients) > _MAX_IDLE_CLIENTS or client.start <= self._virtual_s:
                self._drop_idle(job.client)

    def evict(self, newcomer: str) -> _J | None:
        """Remove and return the newest job of the client with the most waiting jobs.

        Returns None if that would not be fairer: the newcomer has as many, or nearly.
        """
        with self._changed:
            client = max(self._clients.values(), key=lambda client: client.waiting, default=None)
            own = self._clients.get(newcomer)
            if client is None or client.waiting <= (own.waiting if own is not None else 0) + 1:
                return None
            self._waiting -= 1
            return (client.large or client.small).pop()

    @property
    def closed(self) -> bool:
        """Whether the queue takes no more jobs out."""
        return self._closed

    def close(self) -> None:
        """Wake all threads; `get` returns None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def drain(self) -> list[_J]:
        """Remove and return all jobs that wait."""
        with self._changed:
            jobs = [job for client in self._clients.values() for job in (*client.small, *client.large)]
            self._clients.clear()
            self._waiting = 0
            return jobs

    def _next(self) -> _J | None:
        """Remove and return a job of the client with the earliest start, as far as the lanes allow."""
        with_room = self._large_running < self._max_large
        chosen: _Client[_J] | None = None
        for client in self._clients.values():
            if (client.small or (with_room and client.large)) and (chosen is None or client.start < chosen.start):
                chosen = client
        if chosen is None:
            return None
        job = (chosen.small or chosen.large).popleft()
        self._waiting -= 1
        self._virtual_s = max(self._virtual_s, chosen.start)
        chosen.start += _expected_s(job)
        chosen.running += 1
        if job.size > LARGE_JOB_BYTES:
            self._large_running += 1
        return job

    def _drop_idle(self, finished: str) -> None:
        """Forget clients without jobs: the one that finished, or all of them where there are many."""
        names = [*self._clients] if len(self._clients) > _MAX_IDLE_CLIENTS else [finished]
        for name in names:
            client = self._clients[name]
            if not client.waiting and not client.running:
                del self._clients[name]


def _expected_s(job: Queued) -> float:
    return _EXPECTED_S + job.size * _EXPECTED_S_PER_BYTE
