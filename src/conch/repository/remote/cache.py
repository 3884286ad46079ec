"""The local copies: objects by key, complete or not there at all, and the folders that loads make of them.

    objects/<key>            a complete file, read-only
    partial/<key>            a file that is being fetched, and <key>.parts, what of it is there
    indexes/<key>.json       what an archive or a layer of an image was found to hold
    loads/<process>/<n>      folder of one load: hard links to objects

A load's folder never changes and stays until its model is unloaded: a file that changes remotely becomes another
object. An object that nothing refers to any more has one link and may go. Several servers can share a cache.
"""

import errno
import fcntl
import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from conch.errors import Unavailable
from conch.repository.remote.listing import RemoteFile, inside

_READ_ONLY = 0o444
_WRITTEN = 946_684_800  # the time of modification of all objects, so that any later change shows
_NEW = "new-"  # begins the name of a file that is being written


class Cache:
    """The copies of one remote repository below `directory`. For use by several threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        self._loads: Path | None = None

    def open(self) -> None:
        """Make the folders, and remove those of loads whose process is gone. Raises Unavailable."""
        if self._loads is not None:
            return
        with self.writing():
            for kind in ("objects", "partial", "indexes", "loads"):
                (self._directory / kind).mkdir(mode=0o700, parents=True, exist_ok=True)
            loads = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self._directory / "loads"))
            lock = os.open(loads / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Held as long as this object is there, and no longer than the process.
            weakref.finalize(self, os.close, lock)
            self._loads = loads
        self._remove_abandoned_loads()

    def has(self, key: str) -> bool:
        """Whether an object is there, complete and as it was written: a model may have changed what is linked to it."""
        try:
            return self.object(key).stat().st_mtime == _WRITTEN
        except FileNotFoundError:
            return False

    def object(self, key: str) -> Path:
        """Return where an object is or would be."""
        return self._directory / "objects" / key

    def partial(self, key: str) -> Path:
        """Return where an object is while it is being fetched."""
        return self._directory / "partial" / key

    def index(self, key: str) -> Path:
        """Return where the contents of an archive are written down."""
        return self._directory / "indexes" / f"{key}.json"

    def commit(self, file: Path, target: Path) -> None:
        """Make a written file the complete one, durably: whoever finds it by its name finds all of it."""
        with self.writing():
            with file.open("rb+") as stream:
                os.fsync(stream.fileno())
            file.chmod(_READ_ONLY)
            os.utime(file, (_WRITTEN, _WRITTEN))
            file.replace(target)
            _sync_folder(target.parent)

    @contextmanager
    def new_file(self) -> Iterator[tuple[Path, BinaryIO]]:
        """Give a file to write into, removed at the end unless it was committed."""
        with self.writing():
            descriptor, name = tempfile.mkstemp(dir=self._directory / "partial", prefix=_NEW)
        path = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                yield path, stream
        finally:
            path.unlink(missing_ok=True)

    def assemble(self, model: str, entries: Iterable[RemoteFile], where: str) -> Path:
        """Make the folder of a load and return it. All objects must be there.

        Raises ConfigError for a path that leads out, FileNotFoundError if another process has removed an object,
        Unavailable if there is no room.
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
                    _link(self.object(entry.key), target)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def prune(self, wanted: Collection[str]) -> None:
        """Remove objects and rests of objects that are not wanted, that no load has linked and nobody is fetching."""
        for kind in ("objects", "partial"):
            for path in (self._directory / kind).iterdir():
                if path.name.partition(".")[0] not in wanted and not path.name.startswith(_NEW):
                    _remove_unused(path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Say of what the file system refuses that it was the cache. What is missing is left to the caller."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Unavailable(
                f"the repository cache '{self._directory}' cannot be written: {error.strerror or error}; "
                "--repository-cache can name another directory"
            ) from error

    def _remove_abandoned_loads(self) -> None:
        for folder in (self._directory / "loads").iterdir():
            try:
                with (folder / "lock").open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            except OSError:  # in use, or just being made
                continue


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError as error:
        # A file system without hard links, or with no room for more of them to this file.
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        shutil.copyfile(source, target)


def _remove_unused(path: Path) -> None:
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_nlink == 1:
                path.unlink()
    except OSError:  # it is being fetched, or another process has removed it
        return


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
