"""What an engine would leave on the machine if it were killed: sockets in a folder, and shared memory by its name."""

import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux has it


class EngineCleanup:
    """Of one life of an engine: a folder of its own, and what it says that it has in shared memory."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="conch-engine-"))
        self._segments: list[str] = []

    def __repr__(self) -> str:
        return f"<EngineCleanup {self.folder} {len(self._segments)} segments>"

    def note(self, segments: Iterable[str]) -> None:
        """Note names of shared memory."""
        self._segments += (name for name in segments if "/" not in name)

    def remove(self) -> None:
        """Remove what is still there; its processes have ended."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in self._segments:
            with suppress(OSError):
                (_SHARED_MEMORY / name).unlink()
