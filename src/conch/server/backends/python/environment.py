"""The interpreter that runs a model: the server's, or that of the model's environment (`EXECUTION_ENV_PATH`)."""

import asyncio
import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path

from conch.base.archives import extract_tar
from conch.base.errors import ConfigError, ModelLoadError
from conch.server.backends.base import ModelSource
from conch.server.backends.processes.fork_server import MAIN, ForkServer
from conch.server.backends.processes.launch import Launcher, Program
from conch.server.backends.processes.sandbox import confined

PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


class Environments:
    """Launchers of models' processes: the fork server, or the interpreter of a model's environment.

    An archive is unpacked once into a temporary folder, and again when it has changed.
    """

    def __init__(self, fork_server: ForkServer) -> None:
        self._fork_server = fork_server
        self._directory: Path | None = None
        self._unpacking: dict[tuple[Path, int], asyncio.Task[Path]] = {}

    async def remove(self) -> None:
        """Delete the unpacked archives. No process may use them any more."""
        self._unpacking.clear()
        directory, self._directory = self._directory, None
        if directory is not None:
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def launcher(self, source: ModelSource) -> Launcher:
        """Return the launcher of a model's processes, confined if settings require it.

        Raises ModelLoadError for a missing or invalid environment, and as `sandbox.confined`.
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
        # Instances that start together wait for the same archive: cancelling one must not cancel the others.
        return await asyncio.shield(task)


def environment_path(value: str, model_directory: Path) -> Path:
    """Return the path of an environment; a relative one starts at the model's folder.

    A path that names the model's folder by `$$TRITON_MODEL_DIRECTORY` must stay in it; symbolic links in the folder
    may lead out of it. Raises ModelLoadError.
    """
    path = Path(value.replace(_MODEL_DIRECTORY, str(model_directory)))
    if _MODEL_DIRECTORY in value:
        normal = os.path.normpath(path)
        if not Path(normal).is_relative_to(os.path.normpath(model_directory)):
            raise ModelLoadError(f"{PARAMETER} '{value}' leads out of the model's directory ({model_directory})")
    return path if path.is_absolute() else model_directory / path


def _new_directory(parent: Path | None, archive: Path) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="conch-python-", dir=parent))
    except OSError as error:
        raise ModelLoadError(f"{PARAMETER} '{archive}': cannot create a folder to unpack it into: {error}") from error


def _unpack(archive: Path, parent: Path) -> Path:
    target = _new_directory(parent, archive)
    try:
        extract_tar(archive, target)
    except (ConfigError, OSError, EOFError, ValueError, tarfile.TarError, lzma.LZMAError, zlib.error) as error:
        # The disk may be full: do not leave half an environment on it.
        shutil.rmtree(target, ignore_errors=True)
        raise ModelLoadError(f"{PARAMETER} '{archive}' cannot be unpacked into '{parent}': {error}") from error
    return target


def _environment(root: Path, variables: dict[str, str]) -> dict[str, str]:
    for name in ("PYTHONHOME", "PYTHONPATH", "CONDA_PREFIX"):
        variables.pop(name, None)
    variables["VIRTUAL_ENV"] = str(root)
    variables["PATH"] = f"{root / 'bin'}{os.pathsep}{variables.get('PATH', '')}"
    return variables
