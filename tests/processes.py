"""Processes that may end while they are looked at."""

from collections.abc import Iterator

import psutil


def has_ended(pid: int) -> bool:
    """Whether a process has ended, so that only its exit status may be left."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def command_lines(pid: int) -> Iterator[tuple[psutil.Process, list[str]]]:
    """Yield the descendants of a process with their command lines, without those that end meanwhile."""
    for child in psutil.Process(pid).children(recursive=True):
        try:
            yield child, child.cmdline()
        except psutil.Error:
            continue
