"""Read files that a configuration names, confined to the model's folder.

A configuration must not give access to other files of the machine: links that lead out of the folder are refused, and
so are pipes and devices, which could block or never end.

Symbolic links are resolved across `/proc/PID/root`, too, where another container of the pod shows its files. KServe
mounts a model image (modelcar) as a link to `/proc/PID/root/models`. `Path.resolve` follows the last part of
`/proc/PID/root` as the text that it prints, `/`, and so returns a path of this container.
"""

import errno
import os
import re
import stat
from pathlib import Path

from conch.base.errors import Code, ModelLoadError

_PROCESS_ROOT = re.compile(r"/proc/(?:\d+|self|thread-self)/root")
_MAX_LINKS = 40  # Linux's own bound


def confined_path(folder: Path, filename: str, field: str, owner: str) -> Path:
    """Return the path of a file that a configuration names. Raises ModelLoadError if it is not below `folder`.

    `field`, and the `owner` of the field, are for messages. The file need not exist.
    """
    path = folder / filename
    try:
        is_inside = real_path(path).is_relative_to(real_path(folder))
    except (OSError, RuntimeError, ValueError):  # a name too long, a link to itself, a NUL
        is_inside = False
    if not is_inside or "\0" in filename:
        raise ModelLoadError(
            f"{field} '{filename}' of {owner} leads out of the model's directory ({folder})", Code.INVALID_ARG
        )
    return path


def read_confined(folder: Path, filename: str, field: str, owner: str, *, at_most: int, max_bytes: int) -> bytes:
    """Return the first `at_most` bytes of a regular file below `folder`.

    Raises ModelLoadError for a path that leads out and for more than `max_bytes`, OSError if it cannot be read.
    """
    path = confined_path(folder, filename, field, owner)
    subject = f"{field} '{filename}' of {owner}"
    # O_NONBLOCK, because opening a pipe would wait for its writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ModelLoadError(f"{subject} is not a regular file", Code.INVALID_ARG)
        if status.st_size > max_bytes:
            raise ModelLoadError(f"{subject} has {status.st_size} bytes; the limit is {max_bytes}", Code.INVALID_ARG)
        return file.read(min(at_most, max_bytes))


def real_path(path: Path) -> Path:
    """Return the path without symbolic links, as the kernel opens it. Missing parts stay as they are.

    Raises RuntimeError for more links than Linux follows, OSError for a name too long, ValueError for a NUL.
    """
    rest = list(reversed(path.absolute().parts[1:]))
    done, links = "", 0
    while rest:
        part = rest.pop()
        if part in ("", "."):
            continue
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        name = f"{done}/{part}"
        if _PROCESS_ROOT.fullmatch(name):
            done = name
            continue
        try:
            target = str(Path(name).readlink())
        except OSError as error:  # not a link, or missing
            if error.errno == errno.ENAMETOOLONG:
                raise
            done = name
            continue
        links += 1
        if links > _MAX_LINKS:
            raise RuntimeError(f"too many symbolic links: {path}")
        if target.startswith("/"):
            done = ""  # of this container, also below /proc/PID/root
        rest += reversed(target.split("/"))
    return Path(done or "/")
