"""Files that a configuration names, read from the model's own folder and from nowhere else.

Who may write a configuration must not read other files of the machine by it: links that lead out of the folder are
refused, and so is what is not a regular file, which could block or never end.
"""

import os
import stat
from pathlib import Path

from conch.errors import Code, ModelLoadError


def inside(folder: Path, filename: str, field: str, whose: str) -> Path:
    """Return the path of a file that a configuration names. Raises ModelLoadError if it is not below `folder`.

    `field` and `whose` it is are for messages. The file need not exist.
    """
    path = folder / filename
    try:
        is_inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a name too long, a link to itself, a NUL
        is_inside = False
    if not is_inside or "\0" in filename:
        raise ModelLoadError(
            f"{field} '{filename}' of {whose} leads out of the model's directory ({folder})", Code.INVALID_ARG
        )
    return path


def read_inside(folder: Path, filename: str, field: str, whose: str, *, at_most: int, max_bytes: int) -> bytes:
    """Return the first `at_most` bytes of a regular file below `folder`.

    Raises ModelLoadError for one that leads out or has more than `max_bytes`, OSError if it cannot be read.
    """
    path = inside(folder, filename, field, whose)
    what = f"{field} '{filename}' of {whose}"
    # Opening a pipe would wait for its writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ModelLoadError(f"{what} is not a regular file", Code.INVALID_ARG)
        if status.st_size > max_bytes:
            raise ModelLoadError(f"{what} has {status.st_size} bytes; {max_bytes} are the most", Code.INVALID_ARG)
        return file.read(min(at_most, max_bytes))
