"""What a server holds, counted from outside, and the same in its own process: for before and after."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

TIMEOUT_S = 60

_THREAD = re.compile(r"/proc/\d+/task/\d+")
_SHARED = re.compile(r" /memfd:| /dev/shm/")


@dataclass(frozen=True)
class HeldResources:
    """What is to be as it was. Descriptors are counted by kind, so that a difference says what has been left."""

    processes: int
    descriptors: Counter[str]
    mappings: int  # of memory that processes share


def held_resources(pid: int) -> HeldResources:
    """Count what a process and all its descendants hold, but for workers that read and write large messages.

    Those start with the first large message and end when there has been none for a while.
    """
    children = psutil.Process(pid).children(recursive=True)
    workers = [child.pid for child in children if is_worker(child)]
    family = [pid, *(child.pid for child in children if child.pid not in workers)]
    descriptors: Counter[str] = Counter({"socket": -len(workers)})  # the server's end of each worker's connection
    mappings = 0
    for member in family:
        try:
            descriptors.update(_descriptors(member))
            mappings += len(_SHARED.findall(Path(f"/proc/{member}/maps").read_text()))
        except OSError:
            continue  # it has ended since; the next look will be right
    return HeldResources(len(family), descriptors, mappings)


def resting(pid: int) -> HeldResources:
    """Return what a process holds once that has stopped changing."""
    looks = [held_resources(pid)]
    until(
        lambda: looks.append(held_resources(pid)) or looks[-5:] == looks[-1:] * 5, lambda: f"never at rest: {looks[-1]}"
    )
    return looks[-1]


def settled(pid: int, before: HeldResources) -> None:
    """Return when a process holds what it held before; fail with the difference if it never does."""
    until(lambda: held_resources(pid) == before, lambda: f"before {before}\nnow {held_resources(pid)}")


def tasks() -> Counter[str]:
    """Count this loop's tasks by what they run."""
    return Counter(getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks())


def until(condition: Callable[[], object], why: Callable[[], str]) -> None:
    """Return when the condition holds; fail with the reason if it never does."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.005)


def gone(pid: int) -> None:
    """Return when there is no such process any more."""
    until(lambda: not psutil.pid_exists(pid), lambda: f"process {pid} lives on")


def is_worker(process: psutil.Process) -> bool:
    """Whether a child of the server's reads and writes large messages."""
    try:
        return any("offload" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _descriptors(pid: int) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kinds[_THREAD.sub("/proc/thread", str(link.readlink()).partition(":")[0])] += 1
        except FileNotFoundError:
            continue
    return kinds
