"""Repository agents: what a configuration asks to be done with a model's files before they are loaded.

`checksum` is built in. A package provides another as an entry point of the group `conch.repository_agents`, a callable
`agent(model, folder, parameters)` that raises an exception to refuse the model. It may return a folder that it has
made for this load, such as one with decrypted files, from which the model is loaded; the server removes it afterwards.
Agents run in the order of the configuration, each on the folder of the one before it, before other code reads files.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeAlias

from conch.base.errors import ConchError, ConfigError
from conch.base.files.confined import confined_path
from conch.base.suggestion import did_you_mean

ENTRY_POINTS = "conch.repository_agents"
_CHECKSUM = "checksum"

_Agent: TypeAlias = Callable[[str, Path, Mapping[str, str]], Path | None]
# Agents by name with their parameters; the model; its folder.
RunAgents: TypeAlias = Callable[[Iterable[tuple[str, Mapping[str, str]]], str, Path], Path | None]


def no_agents(_agents: Iterable[tuple[str, Mapping[str, str]]], _model: str, _directory: Path) -> None:
    """Run no agents: for commands that only list models."""


def run_agents(
    agents: Iterable[tuple[str, Mapping[str, str]]], model: str, directory: Path, *, static: bool = False
) -> Path | None:
    """Run the agents of a model, each with its parameters; return the folder that the last of them made, None for none.

    `static`: run no code of packages. Raises ConfigError with the cause if an agent refuses the model.
    """
    made: Path | None = None
    for name, parameters in agents:
        subject = f"model_repository_agents: agent '{name}' refuses model '{model}'"
        run = _agent(name)
        if static and name != _CHECKSUM:
            continue
        try:
            result = run(model, made or directory, parameters)
        except Exception as error:
            if made is not None:
                shutil.rmtree(made, ignore_errors=True)
            cause = error.message if isinstance(error, ConchError) else f"{type(error).__name__}: {error}"
            raise ConfigError(f"{subject}: {cause}") from error
        if result is not None and made is not None:
            shutil.rmtree(made, ignore_errors=True)
        made = result or made
    return made


def _agent(name: str) -> _Agent:
    """Return an agent. Raises ConfigError for an unknown name, and for one that several have."""
    if name == _CHECKSUM:
        return _verify_checksums
    installed = entry_points(group=ENTRY_POINTS)
    providers = [point for point in installed if point.name == name]
    if len(providers) != 1:
        known = sorted({_CHECKSUM, *(point.name for point in installed)})
        count = "no installed package provides" if not providers else "several installed packages provide"
        raise ConfigError(f"model_repository_agents: {count} the agent '{name}'{did_you_mean(name, known, '; did')}")
    try:
        agent: _Agent = providers[0].load()
    except Exception as error:
        raise ConfigError(f"model_repository_agents: agent '{name}' cannot be imported: {error}") from error
    return agent


def _verify_checksums(_name: str, folder: Path, parameters: Mapping[str, str]) -> None:
    """Compare files with digests, `MD5:<path>` → digest. Raises ConfigError, ModelLoadError for a path that leads out.

    MD5 is Triton's only algorithm: it finds damage, and SHA256 finds changes that someone intended, too.
    """
    for key, expected in parameters.items():
        algorithm, colon, path = key.partition(":")
        if not colon:
            raise ConfigError(f"failed to parse key: {key}")
        if algorithm.lower() not in ("md5", "sha256"):
            raise ConfigError(f"Unsupported checksum algorithm: {algorithm}")
        digest = _digest(confined_path(folder, path, "file", "the checksum"), path, algorithm.lower())
        if digest != expected.lower():
            raise ConfigError(f"Mismatched {algorithm.upper()} hash for file {path}, expect: {expected}, got: {digest}")


def _digest(file: Path, name: str, algorithm: str) -> str:
    try:
        # O_NONBLOCK, because opening a pipe would wait for its writer.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise ConfigError(f"failed to open text file for read {name}: not a regular file")
            return hashlib.file_digest(opened, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise ConfigError(f"failed to open text file for read {name}: {error.strerror}") from None
