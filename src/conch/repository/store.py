"""The model repository: folders with `<model>/config.pbtxt`, `<model>/<version>/…` and label files, one or several.

Nothing here is loaded or remembered; a `Repository` answers what is there now. All methods do file I/O.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch.errors import ConfigError, NotFound, Unavailable, Unsupported
from conch.model_config import ModelConfig
from conch.repository.backend_fields import fill_backend_fields
from conch.repository.document import parse_json
from conch.repository.override import Override, write_files
from conch.repository.pbtxt import parse_pbtxt
from conch.repository.unserved import refuse_namespaces, refuse_unserved
from conch.repository.validate import validate_configuration
from conch.repository.values import to_model_config
from conch.repository.versions import version_files, versions_on_disk
from conch.repository.watch import Fingerprint, fingerprint
from conch.triton_messages import ModelConfig as ConfigMessage

_CONFIG_FILE = "config.pbtxt"
_LONGEST_NAME = 255  # of a file, on any file system in use


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model as it lies in the repository, or as a load request brought it.

    `config` says what the configuration says; name, backend, platform and file name are filled in, but nothing that
    only the model or the machine can tell: `finish` makes that complete.
    """

    name: str
    directory: Path
    config: ModelConfig
    versions_on_disk: tuple[int, ...]
    fingerprint: Fingerprint  # of the folder in the repository, whatever the override
    has_config: bool
    config_source: str  # where the configuration is from, for messages
    namespace: str = ""  # of the repository that it is in
    temporary: bool = False  # `directory` exists for this load only

    @property
    def document(self) -> Mapping[str, Any]:
        """The configuration as JSON values."""
        return self.config.document

    def discard(self) -> None:
        """Remove the directory that an override made. To be called when the model is unloaded."""
        if self.temporary:
            shutil.rmtree(self.directory, ignore_errors=True)


def local_root(text: str) -> Path:
    """Return the folder that a `--model-repository` names. Raises Unsupported for object storage, by its scheme."""
    scheme, separator, _ = text.partition("://")
    if separator and scheme in ("s3", "gs", "as"):
        raise Unsupported(f"model repository '{text}': this version of Conch reads local folders only, not {scheme}://")
    return Path(text)


class Repository:
    """The models of one or several local folders.

    `config_name` is `--model-config-name`: `configs/<config_name>.pbtxt` goes before config.pbtxt. With
    `auto_complete` off, a model without a configuration is an error. `namespace` is where its names belong, "" where
    there are no namespaces.
    """

    def __init__(
        self, roots: Sequence[Path], *, config_name: str = "", auto_complete: bool = True, namespace: str = ""
    ) -> None:
        self.namespace = namespace
        self._roots = tuple(roots)
        self._config_name = config_name
        self._auto_complete = auto_complete

    def __repr__(self) -> str:
        return f"Repository({', '.join(map(str, self._roots))})"

    def names(self) -> list[str]:
        """Return the names of all models, sorted: every folder that is not hidden.

        Raises ConfigError for a root that is no readable folder.
        """
        return sorted({name for root in self._roots for name in _folders(root)})

    def snapshot(self) -> dict[str, Fingerprint]:
        """Return the fingerprints of all models, for `watch.changes`. Raises as `names` and `fingerprint`."""
        return {name: self.fingerprint(name) for name in self.names()}

    def has(self, name: str) -> bool:
        """Whether there is a folder for a model of this name."""
        return _is_folder_name(name) and bool(self._places(name))

    def fingerprint(self, name: str) -> Fingerprint:
        """Return the fingerprint of a model's files, () if it has none. Equal fingerprints mean: nothing changed.

        Raises Unavailable if they cannot be looked at now.
        """
        try:
            # A model in two places is refused; going from one place to two is a change all the same.
            return tuple(entry for place in self._places(name) for entry in fingerprint(place))
        except OSError as error:
            raise Unavailable(f"the files of model '{name}' cannot be looked at: {error}") from error

    def read(self, name: str, override: Override | None = None) -> ModelFiles:
        """Read the configuration of a model and list its versions.

        With an override, its configuration takes the place of the file's, and its files that of the model's folder;
        such a model need not be in the repository.
        Raises NotFound if there is no such model, ConfigError if its configuration cannot be served.
        """
        _check_name(name)
        override = override or Override()
        if not override.files:
            return self._read(name, self._locate(name), override.config, temporary=False)
        if override.config is None:
            raise ConfigError(f"load of '{name}': 'file:' parameters need a 'config' parameter beside them")
        directory = write_files(name, override.files)
        try:
            return self._read(name, directory, override.config, temporary=True)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise

    def _read(self, name: str, directory: Path, config: str | None, *, temporary: bool) -> ModelFiles:
        # Before the files themselves: what changes while they are read shows up at the next look.
        stamps = self.fingerprint(name)
        file = None if config is not None else self._config_file(directory)
        source = f"'config' of the load of '{name}'" if config is not None else str(file or directory)
        message = self._message(name, file, config)
        versions = versions_on_disk(directory)
        if message.name not in ("", name):
            raise ConfigError(
                f"unexpected directory name '{name}' for model '{message.name}', directory name must equal model name"
            )
        message.name = name
        fill_backend_fields(message, name, version_files(directory, versions[0]) if versions else {})
        try:
            validate_configuration(message)
            refuse_unserved(message)
            if not self.namespace:
                refuse_namespaces(message)
        except ConfigError as error:
            raise ConfigError(f"{error.message} ({source})") from error
        return ModelFiles(
            name=name,
            directory=directory,
            config=to_model_config(message),
            versions_on_disk=versions,
            fingerprint=stamps,
            has_config=config is not None or file is not None,
            config_source=source,
            namespace=self.namespace,
            temporary=temporary,
        )

    def _message(self, name: str, file: Path | None, config: str | None) -> ConfigMessage:
        if config is not None:
            return parse_json(config, f"'config' of the load of '{name}'")
        if file is not None:
            return parse_pbtxt(_text(file), str(file))
        if not self._auto_complete:
            raise ConfigError(f"model '{name}' has no {_CONFIG_FILE}, and completing configurations is switched off")
        return ConfigMessage()

    def _config_file(self, directory: Path) -> Path | None:
        candidates = [directory / "configs" / f"{self._config_name}.pbtxt"] if self._config_name else []
        return next((path for path in [*candidates, directory / _CONFIG_FILE] if path.is_file()), None)

    def _places(self, name: str) -> list[Path]:
        return [root / name for root in self._roots if (root / name).is_dir()]

    def _locate(self, name: str) -> Path:
        places = self._places(name)
        if not places:
            raise NotFound(f"model '{name}' is not in the model repository ({', '.join(map(str, self._roots))})")
        if len(places) > 1:
            raise ConfigError(
                f"model '{name}' is ambiguous: it is in {' and in '.join(str(place.parent) for place in places)}"
            )
        return places[0]


def _check_name(name: str) -> None:
    if len(name.encode()) > _LONGEST_NAME:
        raise ConfigError(f"model name '{name[:60]}…' is not the name of a folder: {_LONGEST_NAME} bytes are the most")
    if not _is_folder_name(name):
        raise ConfigError(f"model name '{name}' is not the name of a folder: it must not be empty or contain a path")


def _is_folder_name(name: str) -> bool:
    return (
        name not in ("", ".", "..")
        and not any(mark in name for mark in "/\\\0")
        and len(name.encode()) <= _LONGEST_NAME
    )


def _folders(root: Path) -> list[str]:
    try:
        with os.scandir(root) as entries:
            # Hidden folders are an editor's, a version control's, or those behind a mounted ConfigMap.
            return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError as error:
        raise ConfigError(f"model repository '{root}' cannot be read: {error.strerror}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text: {error.reason}") from error
