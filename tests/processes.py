"""The processes below another, as far as they live."""

from collections.abc import Iterator

import psutil


def command_lines(pid: int) -> Iterator[tuple[psutil.Process, list[str]]]:
    """Yield the descendants of a process with their command lines, without those that end meanwhile."""
    for child in psutil.Process(pid).children(recursive=True):
        try:
            yield child, child.cmdline()
        except psutil.Error:
            continue
