"""List the shared memory of an engine's processes, for the server to remove if they are killed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def shared_memory() -> tuple[str, ...]:
    """Return the names in /dev/shm that this process and its descendants map."""
    lines = (line for pid in _process_tree(os.getpid()) for line in _read(f"/proc/{pid}/maps").splitlines())
    paths = {Path(line.split(maxsplit=5)[-1]) for line in lines if "/dev/shm/" in line}  # noqa: S108 - Linux's place
    return tuple(path.name for path in paths if path.exists())


def _process_tree(pid: int) -> list[int]:
    children = (child for task in Path(f"/proc/{pid}/task").glob("*") for child in _read(f"{task}/children").split())
    return [pid, *(each for child in children for each in _process_tree(int(child)))]


def _read(path: str) -> str:
    """Return the content of a file in /proc, "" if the process or thread has ended."""
    with suppress(OSError):
        return Path(path).read_text()
    return ""
