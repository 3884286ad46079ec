"""One place with models: what a repository asks of it, and the simplest of them, a folder of this machine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from conch.errors import ConfigError, Unavailable
from conch.repository.model_folders import is_model, is_model_name
from conch.repository.watch import Fingerprint, fingerprint


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """Where a model's files lie. `fingerprint` is of what the root had when `directory` was made or found."""

    directory: Path
    fingerprint: Fingerprint
    temporary: bool = False  # made for one load, to be removed when the model is unloaded


class Root(Protocol):
    """What `--model-repository` names, once for each time that it is given. `str(root)` is fit for messages."""

    def names(self) -> list[str]:
        """Return the names of the models as far as that is known without waiting. Raises ConfigError."""

    def look(self) -> Mapping[str, Fingerprint]:
        """Look anew and return the fingerprints of all models. Raises ConfigError, Unavailable."""

    def fingerprint(self, name: str) -> Fingerprint:
        """Look at one model anew; () if it is not there. Raises Unavailable."""

    def check_answers(self, name: str) -> None:
        """Raise Unavailable with the cause if what was told of a model is of a copy, for the root gave no answer."""

    def has(self, name: str) -> bool:
        """Whether there is a model of this name. Raises Unavailable."""

    def find(self, name: str) -> ModelLocation | None:
        """Return where the files of a model lie, None if it is not there. Raises ConfigError, Unavailable."""


class LocalRoot:
    """A folder whose folders are models; see `is_model_name` for those that are not."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def names(self) -> list[str]:
        """Return the names of the folders. Raises ConfigError if the root is no readable folder."""
        try:
            with os.scandir(self._path) as entries:
                return [entry.name for entry in entries if is_model_name(entry.name) and entry.is_dir()]
        except OSError as error:
            raise ConfigError(f"model repository '{self._path}' cannot be read: {error.strerror}") from error

    def look(self) -> Mapping[str, Fingerprint]:
        """Return the fingerprints of all models. Raises as `names` and `fingerprint`, ConfigError for a model."""
        names = self.names()
        if is_model(self._path):
            raise ConfigError(
                f"model repository '{self._path}' looks like a model, not a repository: it has version folders or a "
                f"config.pbtxt of its own; pass the folder above it: --model-repository={self._path.parent}"
            )
        return {name: self.fingerprint(name) for name in names}

    def fingerprint(self, name: str) -> Fingerprint:
        """Return the fingerprint of a model's folder, () if there is none. Raises Unavailable."""
        try:
            return fingerprint(self._path / name)
        except OSError as error:
            raise Unavailable(f"the files of model '{name}' cannot be looked at: {error}") from error

    def check_answers(self, name: str) -> None:
        """Do nothing: a folder has no copies."""

    def has(self, name: str) -> bool:
        """Whether there is a model's folder of this name."""
        return is_model_name(name) and (self._path / name).is_dir()

    def find(self, name: str) -> ModelLocation | None:
        """Return the model's folder. Raises as `fingerprint`."""
        directory = self._path / name
        # Before the files are read: what changes meanwhile shows up at the next look.
        return ModelLocation(directory, self.fingerprint(name)) if self.has(name) else None
