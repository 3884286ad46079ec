"""Remove what a killed engine process would leave behind: its folder with sockets, and its shared memory."""

import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux has it


class EngineCleanup:
    """Resources of one engine process: a scratch folder, and the shared memory that it reports."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="conch-engine-"))
        self._segments: list[str] = []

    def __repr__(self) -> str:
        return f"<EngineCleanup {self.folder} {len(self._segments)} segments>"

    def add_shared_memory(self, segments: Iterable[str]) -> None:
        """Add names of shared memory to remove."""
        self._segments += (name for name in segments if "/" not in name)

    def remove(self) -> None:
        """Remove the remaining resources, after the processes have ended."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in self._segments:
            with suppress(OSError):
                (_SHARED_MEMORY / name).unlink()
