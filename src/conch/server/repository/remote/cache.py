"""Local cache of remote files: complete objects by key, and folders of hard links to them for loads.

    objects/<key>            a complete file, read-only
    partial/<key>            a file that is being fetched, and <key>.parts, the journal of its parts
    indexes/<key>.json       listing of an archive or image layer
    loads/<process>/<n>      folder of one load: hard links to objects

A load's folder never changes and stays until its model is unloaded: a file that changes remotely becomes another
object. An object with a single link is unused and may be removed. Several servers can share a cache.
"""

import errno
import fcntl
import itertools
import json
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from conch.base.errors import Unavailable
from conch.base.files.atomic import sync_folder
from conch.server.repository.disk_space import FULL, NoSpace, free_bytes
from conch.server.repository.remote.listing import RemoteFile, inside

_READ_ONLY = 0o444
_FIRST_MTIME_S = 946_684_800  # 2000-01-01; an object's modification time is this plus a part of its key
_NEW = "new-"  # prefix of files that are being written
_KINDS = ("objects", "partial", "indexes")
BLOCK_BYTES = 4096  # what a small file takes on common file systems
# Written bytes after which the use of the disk is read again: other processes write, too.
_MEASURE_EVERY_BYTES = 256 << 20


class Cache:
    """The cache of one remote repository below `directory`, of at most `max_bytes` (0: no limit). Thread-safe."""

    def __init__(self, directory: Path, max_bytes: int = 0) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._room_bytes = 0  # when it was measured, less what was written since
        self._until_measured_bytes = 0
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._loads: Path | None = None

    def open(self) -> None:
        """Create the folders, and remove load folders of processes that have ended. Raises Unavailable."""
        if self._loads is not None:
            return
        with self.writing():
            for kind in (*_KINDS, "loads"):
                (self._directory / kind).mkdir(mode=0o700, parents=True, exist_ok=True)
            loads = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self._directory / "loads"))
            lock = os.open(loads / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Held until this object is collected or the process ends.
            weakref.finalize(self, os.close, lock)
            self._loads = loads
        self._remove_abandoned_loads()

    def has(self, key: str) -> bool:
        """Whether an object is in the cache and unchanged: a model could have written to its hard link."""
        try:
            return self.object(key).stat().st_mtime == _mtime_s(key)
        except FileNotFoundError:
            return False

    def object(self, key: str) -> Path:
        """Return the path of an object, which need not exist."""
        return self._directory / "objects" / key

    def partial(self, key: str) -> Path:
        """Return the path of an object while it is being fetched."""
        return self._directory / "partial" / key

    def held_bytes(self, key: str) -> int:
        """Return the bytes of the disk that the partial file of an object takes."""
        try:
            return _taken_bytes(self.partial(key).stat())
        except FileNotFoundError:
            return 0

    def index(self, key: str) -> Path:
        """Return the path of an index: the listing of an archive or image layer, or of the models that are cached."""
        return self._directory / "indexes" / f"{key}.json"

    def read_index(self, key: str) -> Any:
        """Return the JSON value of an index, None if it cannot be read. Its files may no longer be in the cache."""
        try:
            return json.loads(self.index(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def write_index(self, key: str, document: Any) -> None:
        """Write an index durably. Raises Unavailable."""
        with self.new_file() as (file, stream):
            with self.writing():
                stream.write(json.dumps(document).encode())
                stream.flush()
            self.commit(file, self.index(key))

    def admit(self, count: int, name: str) -> None:
        """Check that `count` bytes, which a repository announces for `name`, have room. Raises NoSpace."""
        with self._lock:
            self._measure(name, count)

    def spend(self, count: int, name: str) -> None:
        """Check that `count` more bytes of `name` may be written now. Raises NoSpace."""
        with self._lock:
            if count > min(self._room_bytes, self._until_measured_bytes):
                self._measure(name, count)
            self._room_bytes -= count
            self._until_measured_bytes -= count

    def _measure(self, name: str, count: int) -> None:
        with self.writing():
            used = sum(map(_used_bytes, (self._directory / kind for kind in _KINDS))) if self._max_bytes else 0
            free = free_bytes(self._directory)
        self._until_measured_bytes = _MEASURE_EVERY_BYTES
        self._room_bytes = min(free, self._max_bytes - used) if self._max_bytes else free
        if count <= self._room_bytes:
            return
        if self._max_bytes and count > self._max_bytes - used:
            raise NoSpace(
                f"{name}: {count} bytes more would exceed the limit of {self._max_bytes} bytes for the copies of a "
                f"repository, of which {used} are used; --repository-cache-limit sets it"
            )
        raise NoSpace(
            f"{name}: {count} bytes more do not fit on the disk of the repository cache '{self._directory}', which has "
            f"room for {max(free, 0)}; set --repository-cache to another directory"
        )

    def commit(self, file: Path, target: Path) -> None:
        """Rename a written file to its final name, durably: under that name it is always complete."""
        with self.writing():
            with file.open("rb+") as stream:
                os.fsync(stream.fileno())
            file.chmod(_READ_ONLY)
            os.utime(file, (_mtime_s(target.name), _mtime_s(target.name)))
            file.replace(target)
            sync_folder(target.parent)

    @contextmanager
    def new_file(self) -> Iterator[tuple[Path, BinaryIO]]:
        """Yield a new file for writing, which is removed at the end unless it was committed."""
        with self.writing():
            descriptor, name = tempfile.mkstemp(dir=self._directory / "partial", prefix=_NEW)
        path = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                yield path, stream
        finally:
            path.unlink(missing_ok=True)

    def assemble(self, model: str, entries: Iterable[RemoteFile], where: str) -> Path:
        """Create the folder of a load from cached objects and return it.

        Raises ConfigError for a path that leads out, FileNotFoundError if another process has removed an object,
        Unavailable if there is no space.
        """
        if self._loads is None:
            raise AssertionError("the cache is not open")
        folder = self._loads / f"{model}.{next(self._numbers)}"
        try:
            with self.writing():
                folder.mkdir()
                for entry in entries:
                    target = folder / inside(entry.path, where)
                    if entry.is_folder:
                        target.mkdir(parents=True, exist_ok=True)
                        continue
                    target.parent.mkdir(parents=True, exist_ok=True)
                    link_or_copy(self.object(entry.key), target)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def prune(self, kept: Collection[str]) -> None:
        """Remove complete and partial objects, except those in `kept`, linked by a load, or being fetched."""
        for kind in ("objects", "partial"):
            for path in (self._directory / kind).iterdir():
                if path.name.partition(".")[0] not in kept and not path.name.startswith(_NEW):
                    _remove_unused(path)

    def discard(self, keys: Iterable[str]) -> None:
        """Remove objects that no load uses."""
        for key in keys:
            _remove_unused(self.object(key))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Convert OSError to an Unavailable that names the cache, except FileNotFoundError, which callers handle.

        Raises NoSpace for a full disk.
        """
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            kind = NoSpace if error.errno in FULL else Unavailable
            raise kind(
                f"the repository cache '{self._directory}' cannot be written: {error.strerror or error}; "
                "set --repository-cache to another directory"
            ) from error

    def _remove_abandoned_loads(self) -> None:
        for folder in (self._directory / "loads").iterdir():
            try:
                with (folder / "lock").open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            except OSError:  # in use, or being created
                continue


def _mtime_s(key: str) -> int:
    """The modification time of an object: it shows later changes, and differs between contents of the same size."""
    return _FIRST_MTIME_S + int(sha256(key.encode()).hexdigest()[:7], 16)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Create a hard link, or a copy with the same times where the file system supports no more links."""
    try:
        Path(target).hardlink_to(source)
    except OSError as error:
        # A file system without hard links, another one, or too many links to this file.
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV):
            raise
        shutil.copy2(source, target)


def _used_bytes(folder: Path) -> int:
    """Return the bytes that the files of a folder take."""
    used = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                used += max(_taken_bytes(entry.stat(follow_symlinks=False)), BLOCK_BYTES)
            except FileNotFoundError:  # removed meanwhile
                continue
    return used


def _taken_bytes(status: os.stat_result) -> int:
    return min(status.st_size, status.st_blocks * 512)  # a partial file has holes


def _remove_unused(path: Path) -> None:
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_nlink == 1:
                path.unlink()
    except OSError:  # being fetched, or removed by another process
        return
