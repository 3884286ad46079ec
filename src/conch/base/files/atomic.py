"""Replace files and folders atomically: readers find the old or the new contents, completely."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp

from conch.base.errors import ConfigError, Unavailable

_MAX_PREFIX = 100  # of a file's name, which the name of its replacement begins with


def replace_file(path: Path, content: bytes, new_mode: int | None = None) -> None:
    """Replace a file durably: after a power failure it has the old or the new contents.

    The mode stays; a new file gets `new_mode`, or the usual one. A device or pipe is written to. Raises OSError; then
    the file is unchanged, and no other one is left.
    """
    if path.exists() and not path.is_file():  # /dev/stdout, a FIFO
        path.write_bytes(content)
        return
    mode = path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~_umask() if new_mode is None else new_mode
    descriptor, name = mkstemp(prefix=f".{path.name[:_MAX_PREFIX]}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(descriptor, mode)
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Write the names in a folder to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    """Return the process's umask; os.umask would change it for other threads."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    mask = re.search(r"^Umask:\s*(\d+)", status, re.MULTILINE)
    return int(mask[1], 8) if mask else 0o022


@contextmanager
def atomic_replace(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield an empty folder, hidden from servers, that is renamed to `target` when the block ends.

    If the block raises, nothing is written and an existing target stays as it was.
    Raises ConfigError if the target exists and `replace` is False, Unavailable if it cannot be written.
    """
    if os.path.lexists(target) and not replace:
        raise ConfigError(f"'{target}' exists already")
    missing = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, because a rename needs the same file system; servers ignore names with a dot.
        with TemporaryDirectory(dir=target.parent, prefix=".conch-") as beside:
            new = Path(beside, "new", target.name)
            new.mkdir(parents=True)
            yield new
            _exchange(new, target, Path(beside, "old"))
    except OSError as error:
        _remove_empty(missing)
        raise Unavailable(f"'{target}' cannot be written: {error.strerror or error}") from error
    except BaseException:
        _remove_empty(missing)
        raise


def _exchange(new: Path, target: Path, old: Path) -> None:
    if not os.path.lexists(target):
        new.rename(target)
        return
    target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        old.rename(target)
        raise


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return
