"""Overrides of a load request: a configuration, and uploaded files that replace the model's directory."""

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from conch.errors import ConfigError, Unavailable

# Errors of the machine; all other errors are caused by the path of the upload.
_MACHINE_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EIO,
    errno.EFBIG,
    errno.EMFILE,
    errno.ENFILE,
}

MAX_FILES = 10_000
MAX_FILES_BYTES = 2 << 30
MAX_PATH_BYTES = 2048
MAX_PATH_DEPTH = 64
_PREFIX = "conch-model-uploads."
_LOCK = "lock"


@dataclass(frozen=True, slots=True)
class Override:
    """The parameters of a load: `config` is a ModelConfig as JSON text; `files` are "<version>/<path>" → contents."""

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.config is not None or bool(self.files)


class UploadFolders:
    """Temporary folders for uploaded files, below one root per process, which the process keeps locked.

    The lock ends with the process, so `remove_abandoned` can remove the folders of a server that was killed.
    """

    def __init__(self) -> None:
        self._root: Path | None = None
        self._lock = threading.Lock()

    def write(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Write the files below a new directory and return it; the caller removes it.

        Raises ConfigError if a path leads out of the directory or is not a file name, or if there are too many files;
        Unavailable if there is no space. Nothing remains on disk after an error.
        """
        if len(files) > MAX_FILES:
            raise ConfigError(f"load of '{name}': has {len(files)} 'file:' parameters; the limit is {MAX_FILES}")
        size = sum(map(len, files.values()))
        if size > MAX_FILES_BYTES:
            raise ConfigError(f"load of '{name}': its files have {size} bytes; the limit is {MAX_FILES_BYTES}")
        paths = {path: _inside(name, path) for path in files}
        try:
            directory = Path(tempfile.mkdtemp(prefix="model-", dir=self._own_root()))
        except OSError as error:
            raise Unavailable(f"load of '{name}': no folder for its files can be created: {error}") from error
        try:
            for path, contents in files.items():
                target = directory / paths[path]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(contents)
        except BaseException as error:
            shutil.rmtree(directory, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in _MACHINE_ERRORS:
                place = directory.parent.parent
                raise Unavailable(
                    f"load of '{name}': 'file:{path}' cannot be written to '{place}': {error.strerror}; "
                    "set the environment variable TMPDIR to another folder"
                ) from error
            if isinstance(error, OSError):
                raise ConfigError(f"load of '{name}': 'file:{path}' cannot be written: {error.strerror}") from error
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


def _inside(name: str, path: str) -> PurePosixPath:
    relative = PurePosixPath(path)
    shown = ascii(path[:200])[1:-1]
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"load of '{name}': 'file:{shown}' is not UTF-8") from None
    if relative.is_absolute() or ".." in relative.parts or "\0" in path or not relative.parts:
        raise ConfigError(
            f"load of '{name}': 'file:{shown}' must be a path inside the model's directory, such as 'file:1/model.onnx'"
        )
    if size > MAX_PATH_BYTES or len(relative.parts) > MAX_PATH_DEPTH:
        raise ConfigError(
            f"load of '{name}': 'file:{shown}…' has {size} bytes and is {len(relative.parts)} folders deep; "
            f"the limits are {MAX_PATH_BYTES} bytes and {MAX_PATH_DEPTH} folders"
        )
    return relative
