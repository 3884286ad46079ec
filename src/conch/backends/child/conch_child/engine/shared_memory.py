"""Which shared memory the processes of an engine have: what is to be removed if they are killed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def shared_memory() -> tuple[str, ...]:
    """Return the names of the shared memory of this process and those below it."""
    lines = (line for pid in _family(os.getpid()) for line in _read(f"/proc/{pid}/maps").splitlines())
    paths = {Path(line.split(maxsplit=5)[-1]) for line in lines if "/dev/shm/" in line}  # noqa: S108 - Linux's place
    return tuple(path.name for path in paths if path.exists())


def _family(pid: int) -> list[int]:
    children = (child for task in Path(f"/proc/{pid}/task").glob("*") for child in _read(f"{task}/children").split())
    return [pid, *(each for child in children for each in _family(int(child)))]


def _read(path: str) -> str:
    """Return what a file of /proc says, nothing if the process or thread has ended meanwhile."""
    with suppress(OSError):
        return Path(path).read_text()
    return ""
