"""What `--model-repository` names: a local folder, a Python file or a remote repository."""

import os
from collections.abc import Mapping
from pathlib import Path

from conch.base.errors import ConfigError, Unavailable
from conch.domain.files.model_folder import is_model, is_model_name
from conch.server.repository.model_location import ModelLocation, Root
from conch.server.repository.watch import Fingerprint, fingerprint


class LocalRoot:
    """A local folder whose subfolders are models, except those that `is_model_name` excludes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def names(self) -> list[str]:
        """Return the names of the folders. Raises ConfigError if the root is not a readable folder."""
        try:
            with os.scandir(self._path) as entries:
                return [entry.name for entry in entries if is_model_name(entry.name) and entry.is_dir()]
        except OSError as error:
            place = f"'{error.filename}' in " if Path(error.filename) != self._path else ""
            raise ConfigError(f"{place}model repository '{self._path}' cannot be read: {error.strerror}") from error

    def scan(self) -> Mapping[str, Fingerprint]:
        """Return the fingerprints of all models. Raises ConfigError if the root itself is a model's folder."""
        names = self.names()
        if is_model(self._path):
            raise ConfigError(
                f"model repository '{self._path}' looks like a model, not a repository: it contains version folders or "
                f"a config.pbtxt; use its parent folder: --model-repository={self._path.parent}"
            )
        return {name: self.fingerprint(name) for name in names}

    def fingerprint(self, name: str) -> Fingerprint:
        """Return the fingerprint of a model's folder, () if there is none. Raises Unavailable if it cannot be read."""
        try:
            return fingerprint(self._path / name)
        except OSError as error:
            raise Unavailable(f"the files of model '{name}' cannot be read: {error}") from error

    def check_reachable(self, name: str) -> None:
        """Do nothing: a local folder has no cache."""

    def has(self, name: str) -> bool:
        """Whether a model's folder of this name exists."""
        return is_model_name(name) and (self._path / name).is_dir()

    def find(self, name: str) -> ModelLocation | None:
        """Return the model's folder. Raises Unavailable if it cannot be read."""
        directory = self._path / name
        # Taken before the files are read: the next scan detects changes made in between.
        return ModelLocation(directory, self.fingerprint(name)) if self.has(name) else None


def open_root(
    text: str, cache: str = "", *, max_file_bytes: int | None = None, verify_key: str = "", cache_limit: int = 0
) -> Root:
    """Return the root that a `--model-repository` names, without I/O.

    `cache` is `--repository-cache`, "" for the default folder. With `max_file_bytes`, larger files of a remote
    repository are not fetched; empty files stand in for them. `verify_key` is the file with the public key that must
    have signed an image; other repositories are not signed. `cache_limit` is `--repository-cache-limit`. A relative
    path is resolved once, here, because model processes may have other working directories. Raises ConfigError for a
    URL that does not name a repository.
    """
    if "://" not in text:
        path = Path(text).absolute()
        if path.suffix == ".py":
            from conch.server.repository.python_app import PythonAppRoot

            return PythonAppRoot(path)
        return LocalRoot(path)
    # Imported only for remote repositories: their clients take memory and time.
    from conch.server.repository.remote.mirror import open_mirror

    is_image = text.startswith("oci://")
    return open_mirror(
        text,
        cache,
        max_file_bytes=max_file_bytes,
        verify_key=verify_key if is_image else "",
        cache_limit=cache_limit,
    )


def public_name(text: str) -> str:
    """Return a `--model-repository` without passwords and signatures, for clients and logs."""
    if "://" not in text:
        return text
    from conch.base.http.credentials import without_secrets

    return without_secrets(text)
