"""Space on the disks that Conch writes models to: refuse what does not fit before it fills a disk."""

import errno
import os
from pathlib import Path

from conch.base.errors import Unavailable

# A full disk stops other programs, and the logs that would say why: this part of each file system stays free.
_RESERVED_SHARE = 20
_MAX_RESERVED_BYTES = 1 << 30

# Errors of a write for which only less data, or more space, is a remedy.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class NoSpace(Unavailable):
    """Files would exceed the free space of a disk, or a limit of bytes."""


def free_bytes(folder: Path) -> int:
    """Return how many bytes may be written to the file system of an existing folder; below 0 if it is too full.

    A twentieth of the file system, at most 1 GiB, counts as used, and so do all bytes if it has no inodes left. Raises
    OSError.
    """
    system = os.statvfs(folder)
    if system.f_files and system.f_favail == 0:
        return 0
    size = system.f_blocks * system.f_frsize
    return system.f_bavail * system.f_frsize - min(size // _RESERVED_SHARE, _MAX_RESERVED_BYTES)


def require_space(folder: Path, count: int, what: str, remedy: str) -> None:
    """Raise NoSpace if `count` bytes do not fit on the disk of a folder that may not exist yet.

    `what` is the subject of the message, and `remedy` its end.
    """
    existing = next((path for path in (folder, *folder.absolute().parents) if path.is_dir()), Path("/"))
    try:
        free = free_bytes(existing)
    except OSError:  # the write reports it
        return
    if count > free:
        raise NoSpace(f"{what} needs {count} bytes, but '{existing}' has room for {max(free, 0)}; {remedy}")
