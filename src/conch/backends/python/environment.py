"""The interpreter that runs a model: the server's own, or one that the model brings (`EXECUTION_ENV_PATH`)."""

import asyncio
import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path

from conch.archives.extraction import extract_tar
from conch.backends.base import ModelSource
from conch.backends.processes.fork_server import MAIN, ForkServer
from conch.backends.processes.launch import Launcher, Program
from conch.backends.processes.sandbox import confined
from conch.backends.python.environment_path import PARAMETER, environment_path
from conch.errors import ConfigError, ModelLoadError


class Environments:
    """The interpreters of models: the server's, forked; or their own, of which each process is a new one.

    Archives are unpacked into a temporary folder, each state of each once.
    """

    def __init__(self, fork_server: ForkServer) -> None:
        self._fork_server = fork_server
        self._directory: Path | None = None
        self._unpacking: dict[tuple[Path, int], asyncio.Task[Path]] = {}

    async def remove(self) -> None:
        """Delete what was unpacked. No process may run from it any more."""
        self._unpacking.clear()
        directory, self._directory = self._directory, None
        if directory is not None:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def launcher(self, source: ModelSource) -> Launcher:
        """Return what starts a model's processes, confined if settings say so.

        Raises ModelLoadError if its environment is not there or is none, or as `sandbox.confined`.
        """
        return confined(await self._launcher(source), source)

    async def _launcher(self, source: ModelSource) -> Launcher:
        value = source.config.parameters.get(PARAMETER, "")
        if not value:
            return self._fork_server
        path = environment_path(value, source.directory)
        root = path if path.is_dir() else await self._unpacked(path)
        program = root / "bin" / "python"
        if not program.exists():
            raise ModelLoadError(
                f"{PARAMETER} '{path}' has no bin/python: it must be an environment or an archive of one"
            )
        return Program([str(program), str(MAIN)], _environment(root, self._fork_server.environment.variables()))

    async def _unpacked(self, archive: Path) -> Path:
        try:
            changed = (await asyncio.to_thread(archive.stat)).st_mtime_ns
        except OSError as error:
            raise ModelLoadError(f"{PARAMETER} '{archive}' cannot be read: {error.strerror}") from error
        task = self._unpacking.get((archive, changed))
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            if self._directory is None:
                self._directory = _new_directory(None, archive)
            task = asyncio.create_task(asyncio.to_thread(_unpack, archive, self._directory))
            self._unpacking[archive, changed] = task
        # Instances start together and wait for the same archive; one that gives up must not take it from the others.
        return await asyncio.shield(task)


def _new_directory(parent: Path | None, archive: Path) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="conch-python-", dir=parent))
    except OSError as error:
        raise ModelLoadError(f"{PARAMETER} '{archive}': there is no place to unpack it: {error}") from error


def _unpack(archive: Path, parent: Path) -> Path:
    target = _new_directory(parent, archive)
    try:
        extract_tar(archive, target)
    except (ConfigError, OSError, EOFError, ValueError, tarfile.TarError, lzma.LZMAError, zlib.error) as error:
        # On a full disk, half an environment is in everybody's way.
        shutil.rmtree(target, ignore_errors=True)
        raise ModelLoadError(f"{PARAMETER} '{archive}' cannot be unpacked into '{parent}': {error}") from error
    return target


def _environment(root: Path, variables: dict[str, str]) -> dict[str, str]:
    for name in ("PYTHONHOME", "PYTHONPATH", "CONDA_PREFIX"):
        variables.pop(name, None)
    variables["VIRTUAL_ENV"] = str(root)
    variables["PATH"] = f"{root / 'bin'}{os.pathsep}{variables.get('PATH', '')}"
    return variables
