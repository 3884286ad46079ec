"""The root that `--model-dir` names: one folder with a model, as storage initializers mount it, or with several."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from conch.base.errors import ConfigError, InvalidRequest, Unavailable
from conch.domain.files.model_folder import is_model_name
from conch.server.repository.model_entry import EntryOptions, entry_of, link, write_entry
from conch.server.repository.model_kinds import is_model_folder, name_of
from conch.server.repository.model_location import ModelLocation
from conch.server.repository.roots import LocalRoot
from conch.server.repository.store import check_name
from conch.server.repository.temporary_folders import TemporaryFolders
from conch.server.repository.watch import Fingerprint, fingerprint

_log = logging.getLogger(__name__)

_POLL_S = 0.1


class ModelDirRoot:
    """A folder, or a model's file, that is presented as a repository of one model. Nothing is written into it.

    * A model's files, such as only `model.onnx`: each load gets a temporary folder of symbolic links to them, with the
      configuration that they need.
    * A model's folder with `config.pbtxt` or version folders: it is used as it is, under another name.
    * A repository: its models keep their names.
    """

    def __init__(self, folder: Path, name: str = "", *, allow_pickles: bool = False) -> None:
        """Create the root. Raises ConfigError if `name`, by default the folder's, cannot be a model's name."""
        self._folder = folder
        self.name = name or name_of(folder)
        check_name(self.name)
        if not is_model_name(self.name):
            raise ConfigError(f"model name '{self.name}' is not possible: servers ignore folders of this name")
        self._options = EntryOptions(allow_pickles=allow_pickles)
        self._links = TemporaryFolders()
        self._unused_name = name

    def __str__(self) -> str:
        return str(self._folder)

    @property
    def is_repository(self) -> bool:
        """Whether the folder is a repository of models. Reads it."""
        try:
            return (
                self._folder.is_dir()
                and not is_model_folder(self._folder)
                and any(is_model_name(path.name) and is_model_folder(path) for path in self._folder.iterdir())
            )
        except OSError:
            return False

    def names(self) -> list[str]:
        """Return the model's name, or those of a repository. Raises ConfigError if the folder cannot be read."""
        if self._folder.is_file():
            return [self.name]
        names = LocalRoot(self._folder).names()
        if not self.is_repository:
            return [self.name]
        if self._unused_name:
            _log.info("'%s' is a repository: its models keep their names, --model-name is not used", self._folder)
            self._unused_name = ""
        return names

    def scan(self) -> Mapping[str, Fingerprint]:
        """Return the fingerprints of the models."""
        return {name: self.fingerprint(name) for name in self.names()}

    def fingerprint(self, name: str) -> Fingerprint:
        """Return the fingerprint of a model's files, () if there are none. Raises Unavailable if unreadable."""
        if self.is_repository:
            return LocalRoot(self._folder).fingerprint(name)
        if name != self.name:
            return ()
        try:
            if self._folder.is_file():
                # Weights may be in other files beside it.
                return fingerprint(self._folder.parent)
            return fingerprint(self._folder)
        except OSError as error:
            raise Unavailable(f"the files of model '{name}' cannot be read: {error}") from error

    def check_reachable(self, name: str) -> None:
        """Do nothing: a local folder has no cache."""

    def has(self, name: str) -> bool:
        """Whether there is a model of this name."""
        return LocalRoot(self._folder).has(name) if self.is_repository else name == self.name

    def find(self, name: str) -> ModelLocation | None:
        """Return the model's folder, or a new one of links. Raises ConfigError if there is none in the folder."""
        if self.is_repository:
            return LocalRoot(self._folder).find(name)
        if name != self.name:
            return None
        stamps = self.fingerprint(name)
        if is_model_folder(self._folder):
            return ModelLocation(self._folder, stamps, renamed=True)
        try:
            entry = entry_of(self._folder, self._options)
        except InvalidRequest as error:
            raise ConfigError(error.message) from error
        try:
            links = self._links.write(name, lambda folder: write_entry(folder, entry, link))
        except OSError as error:
            raise Unavailable(f"load of '{name}': links to its files cannot be created: {error}") from error
        return ModelLocation(links, stamps, temporary=True, linked=tuple(entry.files.values()))


async def wait_for_path(path: Path, limit_s: int) -> None:
    """Return when the folder or file exists, or `limit_s` seconds have passed.

    The folder of a modelcar is a link that another container creates, at a time that is not ordered with this one.
    """
    if not limit_s or path.exists():  # noqa: ASYNC240 - once, at start
        return
    _log.info("waiting up to %d s for '%s'", limit_s, path)
    try:
        async with asyncio.timeout(limit_s):
            while not path.exists():  # noqa: ASYNC110, ASYNC240 - a file system reports no event for this
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        _log.error("'%s' does not exist after %d s", path, limit_s)
