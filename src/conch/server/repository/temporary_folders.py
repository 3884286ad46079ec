"""Temporary folders of one load: uploaded files, and links to the files of `--model-dir`."""

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from conch.base.errors import Unavailable

# Errors of the machine; all other errors are caused by the paths to write.
MACHINE_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EIO,
    errno.EFBIG,
    errno.EMFILE,
    errno.ENFILE,
}

_PREFIX = "conch-model-uploads."
_LOCK = "lock"


class TemporaryFolders:
    """Folders below one root per process, which the process keeps locked.

    The lock ends with the process, so `remove_abandoned` can remove the folders of a server that was killed.
    """

    def __init__(self) -> None:
        self._root: Path | None = None
        self._lock = threading.Lock()

    def write(self, name: str, fill: Callable[[Path], None]) -> Path:
        """Create a folder for a load of model `name`, fill and return it; the caller removes it.

        Raises Unavailable if none can be created, and what `fill` raises. Nothing remains on disk after an error.
        """
        try:
            directory = Path(tempfile.mkdtemp(prefix="model-", dir=self._own_root()))
        except OSError as error:
            raise Unavailable(f"load of '{name}': no folder for its files can be created: {error}") from error
        try:
            fill(directory)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return directory

    def _own_root(self) -> Path:
        with self._lock:
            if self._root is None or not self._root.is_dir():
                root = Path(tempfile.mkdtemp(prefix=_PREFIX))
                lock = os.open(root / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX)
                # Also runs at the end of the process, unless it is killed.
                weakref.finalize(self, _remove_root, root, lock, os.getpid())
                self._root = root
            return self._root


def remove_abandoned() -> int:
    """Remove the upload folders of servers of this user that were killed; return their number."""
    removed = 0
    for root in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            status = root.lstat()
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
                continue
            lock = os.open(root / _LOCK, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # not complete yet, or of another user
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(root, ignore_errors=True)
            removed += 1
        except OSError:  # in use
            continue
        finally:
            os.close(lock)
    return removed


def _remove_root(root: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked process
        shutil.rmtree(root, ignore_errors=True)
        os.close(lock)
