"""Download objects into the cache: concurrently, large ones in parts that can be resumed.

An interrupted download of a large object keeps its parts, and the next one resumes. The journal of parts is valid only
until the machine reboots, because parts are not synced to disk.
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
from typing import Protocol, TypeAlias

from conch.base.errors import Unavailable
from conch.server.repository.disk_space import NoSpace
from conch.server.repository.remote.cache import Cache

PART_BYTES = 16 * 1024 * 1024
_CONNECTIONS = 8
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Buffer: TypeAlias = bytes | memoryview


class FetchProgress(Protocol):
    """Callbacks of a download, from several threads. Parts that were fetched before count as received."""

    def expect(self, count: int) -> None:
        """This many bytes more are to be fetched."""

    def received(self, count: int) -> None:
        """This many bytes have been received."""


@dataclass(frozen=True, slots=True)
class Download:
    """An object to be fetched. `read` yields the bytes from `start` to `end`, or raises ConchError."""

    key: str
    name: str  # for messages
    size: int
    read: Callable[[int, int], Iterable[Buffer]]
    in_parts: bool = True  # whether `read` supports any range


class Downloader:
    """Downloads into one cache."""

    def __init__(self, cache: Cache, *, part_bytes: int = PART_BYTES, progress: FetchProgress | None = None) -> None:
        self._cache = cache
        self._part_bytes = part_bytes
        self._received = progress.received if progress is not None else _ignore
        self._expect = progress.expect if progress is not None else _ignore

    def fetch(self, downloads: Iterable[Download]) -> None:
        """Fetch missing objects. Raises the errors of `read`, Unavailable for a wrong size, NoSpace.

        Sizes are claims of the repository: nothing is fetched unless all have room, and disk space is taken as bytes
        arrive.
        """
        missing = {download.key: download for download in downloads if not self._cache.has(download.key)}
        large = [download for download in missing.values() if self._is_large(download)]
        small = [download for download in missing.values() if not self._is_large(download)]
        total = sum(download.size for download in missing.values())
        if missing:
            first, others = next(iter(missing.values())).name, len(missing) - 1
            held = sum(self._cache.held_bytes(download.key) for download in large)
            self._cache.admit(total - held, f"{first} and {others} other files" if others else first)
        self._expect(total)
        with ThreadPoolExecutor(_CONNECTIONS, "conch-download") as pool:
            stop = threading.Event()
            _all(pool, stop, [partial(self._whole, download, stop) for download in small])
            for download in large:
                self._parts(download, pool, stop)

    def _is_large(self, download: Download) -> bool:
        return download.in_parts and download.size > self._part_bytes

    def _whole(self, download: Download, stop: threading.Event) -> None:
        with self._cache.new_file() as (path, stream):
            self._copy(download, stream.fileno(), 0, download.size, stop)
            self._cache.commit(path, self._cache.object(download.key))

    def _parts(self, download: Download, pool: ThreadPoolExecutor, stop: threading.Event) -> None:
        with self._partial(download) as (path, descriptor):
            if self._cache.has(download.key):  # fetched by another process in the meantime
                return
            journal = _Journal(path.with_name(f"{download.key}.parts"), download.size, self._part_bytes)
            done = journal.read() if os.fstat(descriptor).st_size == download.size else set()
            with self._cache.writing():
                journal.begin(done)
                os.ftruncate(descriptor, download.size)  # takes no space; the size is part of the journal's check

            def fetch(index: int) -> None:
                start = index * self._part_bytes
                self._copy(download, descriptor, start, min(start + self._part_bytes, download.size), stop)
                with self._cache.writing():
                    journal.add(index)

            parts = range(-(-download.size // self._part_bytes))
            self._received(sum(min(self._part_bytes, download.size - index * self._part_bytes) for index in done))
            try:
                _all(pool, stop, [partial(fetch, index) for index in parts if index not in done])
                self._cache.commit(path, self._cache.object(download.key))
            except NoSpace:  # other files need the space, and a resumed download would fail again
                path.unlink(missing_ok=True)
                journal.remove()
                raise
            journal.remove()

    def _copy(self, download: Download, descriptor: int, start: int, end: int, stop: threading.Event) -> None:
        """Write the bytes from `start` to `end` at their offsets. Raises Unavailable for more or fewer bytes."""
        position = start
        for chunk in download.read(start, end):
            if stop.is_set():
                raise Unavailable(f"{download.name}: cancelled, because another file could not be fetched")
            if position + len(chunk) > end:
                raise Unavailable(f"{download.name}: the server sent more than the expected {end - start} bytes")
            self._cache.spend(len(chunk), download.name)
            with self._cache.writing():
                _write(descriptor, chunk, position)
            position += len(chunk)
            self._received(len(chunk))
        if position != end:
            raise Unavailable(f"{download.name}: the connection ended after {position - start} of {end - start} bytes")

    @contextmanager
    def _partial(self, download: Download) -> Iterator[tuple[Path, int]]:
        """Open the partial file of an object and lock it against other writers."""
        path = self._cache.partial(download.key)
        while True:
            with self._cache.writing():
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The previous holder of the lock may have renamed or removed the file.
            if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
                break
            os.close(descriptor)
        try:
            yield path, descriptor
        finally:
            os.close(descriptor)


class _Journal:
    """The journal of the fetched parts of a file. Its first line has the file's size, part size and boot id."""

    def __init__(self, path: Path, size: int, part_bytes: int) -> None:
        self._path = path
        boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        self._head = f"{size} {part_bytes} {boot}\n"
        self._lock = threading.Lock()

    def read(self) -> set[int]:
        """Return the numbers of the fetched parts."""
        try:
            head, *lines = self._path.read_text().splitlines(keepends=True)
        except (FileNotFoundError, ValueError):
            return set()
        return {int(line) for line in lines if line.endswith("\n")} if head == self._head else set()

    def begin(self, done: set[int]) -> None:
        """Rewrite the journal with these parts."""
        self._path.write_text(self._head + "".join(f"{index}\n" for index in sorted(done)))

    def add(self, index: int) -> None:
        """Record a fetched part."""
        with self._lock, self._path.open("a") as stream:
            stream.write(f"{index}\n")

    def remove(self) -> None:
        """Remove the journal of a complete file."""
        self._path.unlink(missing_ok=True)


def _all(pool: ThreadPoolExecutor, stop: threading.Event, tasks: Sequence[Callable[[], None]]) -> None:
    """Run all tasks. After a failure the others stop early, and the first error is raised."""
    failures: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            if not stop.is_set():
                task()
        except BaseException as error:
            failures.append(error)  # the first one is the cause; the others may be its effects
            stop.set()

    try:
        wait([pool.submit(run, task) for task in tasks])
    except BaseException:  # a signal: the pool would wait for all of them
        stop.set()
        raise
    if failures:
        raise failures[0]


def _ignore(_count: int) -> None:
    """Do nothing: the default callback of progress."""


def _write(descriptor: int, chunk: Buffer, position: int) -> None:
    view = memoryview(chunk).cast("B")
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written
