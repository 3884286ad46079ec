"""Read the model repository: folders with `<model>/config.pbtxt`, `<model>/<version>/…` and label files.

A `Repository` is stateless: each call reads the current files and loads no model. All methods except `check_reachable`
do I/O; all except that and `names` may wait for a network.
"""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import fstat
from pathlib import Path
from typing import Any

from conch.base.errors import ConfigError, NotFound
from conch.base.suggestion import did_you_mean
from conch.domain.config.backend_fields import fill_backend_fields
from conch.domain.config.document import parse_json
from conch.domain.config.from_proto import to_model_config
from conch.domain.config.pbtxt import parse_pbtxt
from conch.domain.config.size_limits import MAX_CONFIG_BYTES, check_file_size, check_limits, check_text_size
from conch.domain.config.unsupported import refuse_namespaces, refuse_unsupported
from conch.domain.config.validate import validate_configuration
from conch.domain.files.model_folder import missing_version, version_files, versions_on_disk
from conch.domain.model_config import ModelConfig
from conch.domain.triton_messages import ModelConfig as ConfigMessage
from conch.server.repository.agents import RunAgents, no_agents
from conch.server.repository.model_location import ModelLocation, Root
from conch.server.repository.override import Override, UploadFolders
from conch.server.repository.roots import LocalRoot
from conch.server.repository.watch import Fingerprint

_CONFIG_FILE = "config.pbtxt"
_MAX_NAME_BYTES = 255  # of a file, on common file systems
_MIN_SIMILARITY = 0.7  # of a name and its suggested correction


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model as it lies in the repository or was sent with a load request.

    `config` has the fields of the configuration, with name, backend, platform and file name filled in. Values that
    depend on the model file or the machine are still missing: `resolve` adds them.
    """

    name: str
    directory: Path
    config: ModelConfig
    versions_on_disk: tuple[int, ...]
    fingerprint: Fingerprint  # of the folder in the repository, even with an override
    config_source: str  # of the configuration, for messages
    namespace: str = ""  # of the repository
    temporary: bool = False  # whether `directory` exists for this load only
    uploaded: bool = False  # whether the files are those of a load request
    overridden: bool = False  # whether the configuration or the files are those of a load request
    linked: tuple[Path, ...] = ()  # files that links in a temporary directory name

    @property
    def document(self) -> Mapping[str, Any]:
        """The configuration as JSON values."""
        return self.config.document

    def discard(self) -> None:
        """Remove a temporary directory. Called when the model is unloaded."""
        if self.temporary:
            shutil.rmtree(self.directory, ignore_errors=True)


class Repository:
    """The models of one or several roots; a path means a local folder.

    `config_name` is `--model-config-name`: `configs/<config_name>.pbtxt` takes precedence over config.pbtxt. With
    `auto_complete` off, a model without a configuration is an error. `namespace` is "" without namespaces.
    `agents` runs the repository agents of a model.
    """

    def __init__(
        self,
        roots: Sequence[Path | Root],
        *,
        config_name: str = "",
        auto_complete: bool = True,
        namespace: str = "",
        agents: RunAgents = no_agents,
    ) -> None:
        self.namespace = namespace
        self._roots: tuple[Root, ...] = tuple(LocalRoot(root) if isinstance(root, Path) else root for root in roots)
        self._added: tuple[Root, ...] = ()
        self._agents = agents
        self._config_name = config_name
        self._auto_complete = auto_complete
        self._uploads = UploadFolders()

    def __repr__(self) -> str:
        return f"Repository({', '.join(map(str, self._roots))})"

    def of(self, roots: Sequence[Root], namespace: str) -> "Repository":
        """Return a repository of these roots with the same settings."""
        return Repository(
            roots,
            config_name=self._config_name,
            auto_complete=self._auto_complete,
            namespace=namespace,
            agents=self._agents,
        )

    def add(self, roots: Sequence[Root]) -> None:
        """Add roots. Their models hide others of the same name."""
        self._added = (*self._added, *roots)

    def remove(self, roots: Sequence[Root]) -> None:
        """Remove roots that were added."""
        self._added = tuple(root for root in self._added if root not in roots)

    def _roots_of(self, name: str) -> Sequence[Root]:
        """Return the roots to look for a model in."""
        return [root for root in self._added if root.has(name)] or self._roots

    def names(self) -> list[str]:
        """Return the names of all models, sorted. Raises ConfigError for a root that is not a readable folder."""
        return sorted({name for root in (*self._roots, *self._added) for name in root.names()})

    def duplicates(self) -> frozenset[str]:
        """Return the names that are in more than one root. Raises ConfigError."""
        counts = Counter(name for root in self._roots for name in root.names())
        return frozenset(name for name, count in counts.items() if count > 1)

    def suggestion(self, name: str) -> str:
        """Return `; did you mean '…'?` with the most similar name, to end a sentence, "" if there is none."""
        try:
            return did_you_mean(name, self.names(), cutoff=_MIN_SIMILARITY)
        except ConfigError:
            return ""

    def snapshot(self) -> dict[str, Fingerprint]:
        """Return the fingerprints of all models, for `watch.changes`. Raises as `names` and `fingerprint`."""
        fingerprints: dict[str, Fingerprint] = {}
        for root in self._roots:
            for name, stamps in root.scan().items():
                # A model in two roots is refused; its second appearance must count as a change.
                fingerprints[name] = (*fingerprints.get(name, ()), *stamps)
        return fingerprints

    def has(self, name: str) -> bool:
        """Whether there is a folder for a model of this name."""
        return is_folder_name(name) and any(root.has(name) for root in self._roots_of(name))

    def fingerprint(self, name: str) -> Fingerprint:
        """Return the fingerprint of a model's files, () if it has none. Equal fingerprints mean that nothing changed.

        Raises Unavailable if the files cannot be read now.
        """
        return tuple(entry for root in self._roots_of(name) for entry in root.fingerprint(name))

    def check_reachable(self, name: str) -> None:
        """Raise Unavailable with the cause if a model is served from the cache because its root does not answer."""
        for root in self._roots_of(name):
            root.check_reachable(name)

    def read(self, name: str, override: Override | None = None) -> ModelFiles:
        """Read the configuration of a model and list its versions.

        An override's configuration replaces the file, and its files replace the model's folder; the model need not be
        in the repository then.
        Raises NotFound if there is no such model, ConfigError if its configuration cannot be served.
        """
        check_name(name)
        overridden, override = override is not None, override or Override()
        if override.files and override.config is None:
            raise ConfigError(f"load of '{name}': 'file:' parameters need a 'config' parameter too")
        if override.files:
            place = ModelLocation(self._uploads.write(name, override.files), self.fingerprint(name), temporary=True)
        else:
            place = self._find(name)
        try:
            files = self._read(name, place, override.config)
            return replace(files, uploaded=bool(override.files), overridden=overridden)
        except BaseException:
            if place.temporary:
                shutil.rmtree(place.directory, ignore_errors=True)
            raise

    def _read(self, name: str, place: ModelLocation, config: str | None) -> ModelFiles:
        directory = place.directory
        file = None if config is not None else self._config_file(directory)
        source = f"'config' of the load of '{name}'" if config is not None else str(file or directory)
        message = self._message(name, file, config)
        try:
            check_limits(message, name)
        except ConfigError as error:
            raise ConfigError(f"{error.message} ({source})") from error
        agents = [(agent.name, dict(agent.parameters)) for agent in message.model_repository_agents.agents]
        made = self._agents(agents, name, directory)
        if made is None:
            return self._of_message(message, name, place, source)
        try:
            files = self._of_message(message, name, replace(place, directory=made, temporary=True), source)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        if place.temporary:
            shutil.rmtree(directory, ignore_errors=True)
        return files

    def _of_message(self, message: ConfigMessage, name: str, place: ModelLocation, source: str) -> ModelFiles:
        directory = place.directory
        versions = versions_on_disk(directory)
        if message.name not in ("", name) and not place.renamed:
            raise ConfigError(
                f"unexpected directory name '{name}' for model '{message.name}', directory name must equal model name"
            )
        message.name = name
        try:
            fill_backend_fields(message, name, version_files(directory, versions[0]) if versions else {})
        except ConfigError as error:
            if versions:
                raise
            raise ConfigError(f"{error.message} There is no version directory: {missing_version(directory)}") from error
        try:
            validate_configuration(message)
            refuse_unsupported(message)
            if not self.namespace:
                refuse_namespaces(message)
        except ConfigError as error:
            raise ConfigError(f"{error.message} ({source})") from error
        return ModelFiles(
            name=name,
            directory=directory,
            config=to_model_config(message),
            versions_on_disk=versions,
            fingerprint=place.fingerprint,
            config_source=source,
            namespace=self.namespace,
            temporary=place.temporary,
            linked=place.linked,
        )

    def _message(self, name: str, file: Path | None, config: str | None) -> ConfigMessage:
        if config is not None:
            check_text_size(config, f"'config' of the load of '{name}'")
            return parse_json(config, f"'config' of the load of '{name}'")
        if file is not None:
            return parse_pbtxt(_text(file), str(file))
        if not self._auto_complete:
            raise ConfigError(f"model '{name}' has no {_CONFIG_FILE}, and auto-completion of configurations is off")
        return ConfigMessage()

    def _config_file(self, directory: Path) -> Path | None:
        candidates = [directory / "configs" / f"{self._config_name}.pbtxt"] if self._config_name else []
        return next((path for path in [*candidates, directory / _CONFIG_FILE] if path.is_file()), None)

    def _find(self, name: str) -> ModelLocation:
        candidates = [(root, place) for root in self._roots_of(name) if (place := root.find(name)) is not None]
        if not candidates:
            places = ", ".join(map(str, self._roots))
            raise NotFound(f"model not found in any model repository ({places}){self.suggestion(name)}")
        if len(candidates) > 1:
            raise ConfigError(
                f"model '{name}' is ambiguous: it is in {' and in '.join(str(root) for root, _ in candidates)}"
            )
        return candidates[0][1]


def check_name(name: str) -> None:
    """Raise ConfigError if this cannot be the name of a model's folder."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:  # names of folders are bytes
        raise ConfigError(f"model name {name!r} is not valid UTF-8") from None
    if len(encoded) > _MAX_NAME_BYTES:
        raise ConfigError(
            f"model name '{name[:60]}…' is not a valid folder name: it has {len(encoded)} bytes, the limit is "
            f"{_MAX_NAME_BYTES}"
        )
    if not is_folder_name(name):
        raise ConfigError(f"model name '{name}' is not a valid folder name: it must not be empty or contain a path")


def is_folder_name(name: str) -> bool:
    """Whether a folder can have this name."""
    return (
        name not in ("", ".", "..")
        and not any(mark in name for mark in "/\\\0")
        and len(name.encode()) <= _MAX_NAME_BYTES
    )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
            check_file_size(path, len(data) if len(data) <= MAX_CONFIG_BYTES else fstat(file.fileno()).st_size)
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text: {error.reason}") from error
