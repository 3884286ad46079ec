"""Remove folders that confined models have filled, whatever their depth and modes."""

import os
import stat
from pathlib import Path
from threading import main_thread
from time import monotonic

EXIT_S = 10.0  # for removals when the server exits
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it; errors leave the rest.

    `shutil.rmtree` keeps a descriptor and a stack frame for each level, so that a model with a deep tree could exhaust
    both. Here folders move up to the top first, which takes three descriptors. Links are not followed.
    """
    try:
        top = os.open(folder, _FOLDER)
    except OSError:
        return
    try:
        _empty(top, _ExitLimit())
        folder.rmdir()
    except OSError:  # what still runs may write there; the operating system's clean-up has the rest
        return
    finally:
        os.close(top)


class _ExitLimit:
    """Ends a removal a limited time after the main thread, which the process would wait for else."""

    def __init__(self) -> None:
        self._until = monotonic() + EXIT_S

    def check(self) -> None:
        """Raise OSError when the time is over."""
        now = monotonic()
        if main_thread().is_alive():
            self._until = now + EXIT_S
        elif now >= self._until:
            raise OSError("the process exits")


def _empty(top: int, limit: _ExitLimit) -> None:
    """Remove the entries of an open folder. Raises OSError when a pass removes nothing."""
    number = 0
    while names := os.listdir(top):
        removed = 0
        for name in names:
            limit.check()
            if _unlinked(name, top):
                removed += 1
                continue
            number = _raise_folders(top, name, number, limit)
            try:
                os.rmdir(name, dir_fd=top)
                removed += 1
            except OSError:
                continue
        if not removed:
            raise OSError(f"{len(names)} entries cannot be removed")


def _raise_folders(top: int, name: str, number: int, limit: _ExitLimit) -> int:
    """Remove the files of a folder in `top` and move its folders into `top`; return the number for the next one."""
    try:
        folder = _opened(top, name)
    except OSError:
        return number
    try:
        for entry in os.listdir(folder):  # noqa: PTH208 - an open folder has no path
            limit.check()
            if not _unlinked(entry, folder):
                number += 1
                _make_writable(folder, entry)  # a folder moves only if its own entry '..' may be written
                os.rename(entry, f".{number}-{os.getpid()}", src_dir_fd=folder, dst_dir_fd=top)
    except OSError:  # the next pass tries again
        return number
    finally:
        os.close(folder)
    return number


def _unlinked(name: str, folder: int) -> bool:
    """Remove a file; return False for a folder. Raises OSError."""
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=folder)
    return True


def _opened(top: int, name: str) -> int:
    _make_writable(top, name)
    return os.open(name, _FOLDER, dir_fd=top)


def _make_writable(parent: int, name: str) -> None:
    """Set the mode of a folder, but never that of a link's target."""
    folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        Path(f"/proc/self/fd/{folder}").chmod(0o700)
    finally:
        os.close(folder)
