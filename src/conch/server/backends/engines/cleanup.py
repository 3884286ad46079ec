"""Remove what a killed engine process would leave behind: its folder with sockets, and its shared memory."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from conch.machine.memory import child_processes
from conch.server.backends.processes.remove_tree import remove_tree

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux has it


class EngineCleanup:
    """Resources of one engine process: a scratch folder, and the shared memory that it has created.

    To be made before the process starts: what was in /dev/shm by then belongs to others.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="conch-engine-"))
        self._foreign = frozenset(_segments().values())
        self._owned: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<EngineCleanup {self.folder} {len(self._owned)} segments>"

    def find_shared_memory(self, pid: int) -> None:
        """Find the shared memory that a process or a descendant maps. The process is not asked: it may lie."""
        mapped = {inode for process in _process_tree(pid) for inode in _mapped_inodes(process)}
        own = mapped - self._foreign
        self._owned |= {name: inode for name, inode in _segments().items() if inode in own}

    @property
    def inodes(self) -> frozenset[int]:
        """Inodes of the shared memory that was found."""
        return frozenset(self._owned.values())

    def remove(self) -> None:
        """Remove the remaining resources, after the processes have ended."""
        remove_tree(self.folder)
        for name, inode in self._owned.items():
            with suppress(OSError):
                path = _SHARED_MEMORY / name
                if path.lstat().st_ino == inode:
                    path.unlink()


def _segments() -> dict[str, int]:
    """Return the files in /dev/shm with their inodes."""
    segments: dict[str, int] = {}
    with suppress(OSError), os.scandir(_SHARED_MEMORY) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                segments[entry.name] = entry.inode()
    return segments


def _process_tree(pid: int) -> Iterator[int]:
    yield pid
    for child in child_processes(pid):
        yield from _process_tree(child)


def _mapped_inodes(pid: int) -> Iterator[int]:
    for line in _read(Path(f"/proc/{pid}/maps")).splitlines():
        if str(_SHARED_MEMORY) in line:
            yield int(line.split(maxsplit=5)[4])


def _read(path: Path) -> str:
    """Return the content of a file in /proc, "" if the process or thread has ended."""
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""
