"""What differs when a file has changed."""

import os


def file_stamp(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """Return the inode, the size, and when content and attributes changed, in ns; () for a file that cannot be read.

    A file that is replaced has another inode, also if an old one with its times is put in its place; one whose
    permissions change has another time of its attributes. An empty path, of a file that is not given, has ().
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path without a name is the working directory
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
