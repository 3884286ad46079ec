"""How long the threads that a framework computes with wait for a processor: those beside the thread of an instance."""

import os
from contextlib import suppress
from pathlib import Path
from threading import get_native_id
from time import monotonic_ns

_TASKS = Path("/proc/self/task")
# Reading the waits of a thread takes 2 µs: at most 1 % of the time.
_PAUSE_NS = 200_000
_MAX_THREADS = 32  # each has an open file
# Frameworks start threads when they load, when they compute first, and when they divide a batch first.
_SEARCH_PAUSE_NS = 1_000_000_000
_FILE_BYTES = 96
_NAME_BYTES = 15  # of a thread in Linux


class PoolThreads:
    """The threads that the thread which makes this object starts, and those that they start.

    They are known by its name, which they inherit. All methods are called in this thread.
    """

    def __init__(self, name: str) -> None:
        self._own = str(get_native_id())
        self._name = f"{self._own} {name}".encode()[:_NAME_BYTES]  # the number is unique
        with suppress(OSError):
            (_TASKS / self._own / "comm").write_bytes(self._name)
        self._files: dict[str, int] = {}  # by number of a thread, its schedstat; -1 for one that is not of the pool
        self._waits: dict[int, int] = {}  # by file
        self._searched_ns = self._read_ns = 0

    def begin(self, now: int) -> None:
        """Read the waits before an execution, unless they were read a moment ago."""
        if now - self._searched_ns >= _SEARCH_PAUSE_NS:
            self._searched_ns = now
            self._search()
            self._read()
        elif self._is_due(now):
            self._read()

    def waited(self, now: int) -> int:
        """Return how long the thread that waited longest has done so since the last reading, in ns.

        0 if that is too short ago to read it again: it would take more than 1 % of the time.
        """
        if not self._is_due(now):
            return 0
        before = self._waits
        self._read()
        return max((waits - before.get(file, waits) for file, waits in self._waits.items()), default=0)

    def close(self) -> None:
        """Release the files."""
        for file in self._files.values():
            if file >= 0:
                os.close(file)
        self._files, self._waits = {}, {}

    def _is_due(self, now: int) -> bool:
        return len(self._waits) > 0 and now - self._read_ns >= _PAUSE_NS * len(self._waits)

    def _search(self) -> None:
        threads = {task.name for task in _TASKS.iterdir()}
        for thread in self._files.keys() - threads:
            if (file := self._files.pop(thread)) >= 0:
                os.close(file)
        opened = sum(file >= 0 for file in self._files.values())
        for thread in sorted(threads - self._files.keys()):
            self._files[thread] = self._open(thread) if opened < _MAX_THREADS else -1
            opened += self._files[thread] >= 0
        self._waits = dict.fromkeys((file for file in self._files.values() if file >= 0), 0)

    def _open(self, thread: str) -> int:
        """Return the open schedstat of a thread, -1 if it is not one of the pool."""
        with suppress(OSError):  # it has ended
            if thread != self._own and (_TASKS / thread / "comm").read_bytes().rstrip(b"\n") == self._name:
                return os.open(_TASKS / thread / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
        return -1

    def _read(self) -> None:
        waits: dict[int, int] = {}
        for file in self._waits:
            with suppress(OSError, ValueError, IndexError):  # it has ended, or the kernel does not count
                waits[file] = int(os.pread(file, _FILE_BYTES, 0).split()[1])
        self._waits, self._read_ns = waits, monotonic_ns()
