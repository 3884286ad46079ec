"""Objects into the cache: several at a time, large ones in parts, and complete or not at all.

What was fetched of a large object is kept when the fetch breaks off, and the next one continues. The journal that says
which parts are there counts only until the machine is started anew, for until then no write is lost.
"""

import fcntl
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from conch.errors import Unavailable
from conch.repository.remote.cache import Cache

PART_BYTES = 16 * 1024 * 1024
_CONNECTIONS = 8
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Buffer: TypeAlias = bytes | memoryview
Progress: TypeAlias = Callable[[int], None]  # so many bytes more have come


@dataclass(frozen=True, slots=True)
class Download:
    """An object to be fetched. `read` gives the bytes from `start` to `end`, or raises what says why it cannot."""

    key: str
    name: str  # for messages
    size: int
    read: Callable[[int, int], Iterable[Buffer]]
    in_parts: bool = True  # whether `read` can begin and end anywhere


class Downloader:
    """Fetches into one cache. `progress` is told, from several threads, how many bytes have come."""

    def __init__(self, cache: Cache, *, part_bytes: int = PART_BYTES, progress: Progress | None = None) -> None:
        self._cache = cache
        self._part_bytes = part_bytes
        self._progress = progress or (lambda _count: None)

    def fetch(self, downloads: Iterable[Download]) -> None:
        """Return when every object is in the cache. Raises what `read` raises, Unavailable for a short or full one."""
        missing = {one.key: one for one in downloads if not self._cache.has(one.key)}
        large = [one for one in missing.values() if one.in_parts and one.size > self._part_bytes]
        small = [one for one in missing.values() if one not in large]
        with ThreadPoolExecutor(_CONNECTIONS, "conch-download") as pool:
            stop = threading.Event()
            _all(pool, stop, [partial(self._whole, one, stop) for one in small])
            for one in large:
                self._parts(one, pool, stop)

    def _whole(self, one: Download, stop: threading.Event) -> None:
        with self._cache.new_file() as (path, stream):
            self._copy(one, stream.fileno(), 0, one.size, stop)
            self._cache.commit(path, self._cache.object(one.key))

    def _parts(self, one: Download, pool: ThreadPoolExecutor, stop: threading.Event) -> None:
        with self._partial(one) as (path, descriptor):
            if self._cache.has(one.key):  # another process has been at it
                return
            journal = _Journal(path.with_name(f"{one.key}.parts"), one.size, self._part_bytes)
            done = journal.read() if os.fstat(descriptor).st_size == one.size else set()
            with self._cache.writing():
                journal.begin(done)
                # Now rather than after half of it: whether there is room.
                os.posix_fallocate(descriptor, 0, one.size)

            def fetch(index: int) -> None:
                start = index * self._part_bytes
                self._copy(one, descriptor, start, min(start + self._part_bytes, one.size), stop)
                journal.add(index)

            parts = range(-(-one.size // self._part_bytes))
            self._progress(sum(min(self._part_bytes, one.size - index * self._part_bytes) for index in done))
            _all(pool, stop, [partial(fetch, index) for index in parts if index not in done])
            self._cache.commit(path, self._cache.object(one.key))
            journal.remove()

    def _copy(self, one: Download, descriptor: int, start: int, end: int, stop: threading.Event) -> None:
        """Write the bytes from `start` to `end` where they belong. Raises Unavailable if it is not exactly those."""
        position = start
        for chunk in one.read(start, end):
            if stop.is_set():
                raise Unavailable(f"{one.name}: given up, for another file could not be fetched")
            if position + len(chunk) > end:
                raise Unavailable(f"{one.name}: more than the {end - start} bytes came that were to come")
            with self._cache.writing():
                _write(descriptor, chunk, position)
            position += len(chunk)
            self._progress(len(chunk))
        if position != end:
            raise Unavailable(f"{one.name}: the connection ended after {position - start} of {end - start} bytes")

    @contextmanager
    def _partial(self, one: Download) -> Iterator[tuple[Path, int]]:
        """Open the file of what is there of an object. Nobody else writes into it meanwhile."""
        path = self._cache.partial(one.key)
        while True:
            with self._cache.writing():
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Who held it may have finished or removed it meanwhile.
            if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
                break
            os.close(descriptor)
        try:
            yield path, descriptor
        finally:
            os.close(descriptor)


class _Journal:
    """Which parts of a file are there: a first line that says of which file, in which parts, since which boot."""

    def __init__(self, path: Path, size: int, part_bytes: int) -> None:
        self._path = path
        boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        self._head = f"{size} {part_bytes} {boot}\n"
        self._lock = threading.Lock()

    def read(self) -> set[int]:
        """Return the numbers of the parts that are there."""
        try:
            head, *lines = self._path.read_text().splitlines(keepends=True)
        except (FileNotFoundError, ValueError):
            return set()
        return {int(line) for line in lines if line.endswith("\n")} if head == self._head else set()

    def begin(self, done: set[int]) -> None:
        """Write the journal anew, with these parts in it."""
        self._path.write_text(self._head + "".join(f"{index}\n" for index in sorted(done)))

    def add(self, index: int) -> None:
        """Write down that a part is there."""
        with self._lock, self._path.open("a") as stream:
            stream.write(f"{index}\n")

    def remove(self) -> None:
        """Forget it: the file is complete."""
        self._path.unlink(missing_ok=True)


def _all(pool: ThreadPoolExecutor, stop: threading.Event, tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks until all are done or one fails; then the others stop early and its error is raised."""
    failures: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            if not stop.is_set():
                task()
        except BaseException as error:
            failures.append(error)  # the first one is the cause, those after it may be its effects
            stop.set()

    wait([pool.submit(run, task) for task in tasks])
    if failures:
        raise failures[0]


def _write(descriptor: int, chunk: Buffer, position: int) -> None:
    view = memoryview(chunk).cast("B")
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written
