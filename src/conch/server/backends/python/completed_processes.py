"""Processes in which `auto_complete_config` has run: the first instance of a model takes one, with its imports done."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from conch.server.backends.base import ModelSource
from conch.server.backends.processes.launch import Launcher
from conch.server.backends.python.model_code import code_path
from conch.server.backends.python.model_process import ModelProcess
from conch.server.backends.python.settings import PythonSettings

# How long a process waits for its instance. The load may fail before it.
_KEPT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a process was started from: an instance takes one only if it would start an equal one."""

    code: Path
    launcher: Launcher
    settings: PythonSettings


class CompletedProcesses:
    """Holds processes for a short time, one for each model version. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._kept: dict[Path, tuple[_Origin, ModelProcess, asyncio.TimerHandle]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def keep(self, process: ModelProcess, source: ModelSource, launcher: Launcher, settings: PythonSettings) -> None:
        """Keep a process for an instance of this model version."""
        self.discard(source)
        timer = asyncio.get_running_loop().call_later(_KEPT_S, self._end, source.version_directory)
        self._kept[source.version_directory] = (_Origin(code_path(source), launcher, settings), process, timer)

    def take(self, source: ModelSource, launcher: Launcher, settings: PythonSettings) -> ModelProcess | None:
        """Return the process for an instance, None if there is none of the same code, interpreter and confinement."""
        kept = self._kept.get(source.version_directory)
        if kept is None or source.cores or kept[0] != _Origin(code_path(source), launcher, settings):
            return None
        _, process, timer = self._kept.pop(source.version_directory)
        timer.cancel()
        return process if process.alive else None

    def discard(self, source: ModelSource) -> None:
        """End the process for this model version, if there is one."""
        self._end(source.version_directory)

    async def stop(self) -> None:
        """End all processes."""
        for directory in list(self._kept):
            self._end(directory)
        await asyncio.gather(*self._ending)

    def _end(self, directory: Path) -> None:
        kept = self._kept.pop(directory, None)
        if kept is not None:
            _, process, timer = kept
            timer.cancel()
            ending = asyncio.get_running_loop().create_task(process.kill())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
