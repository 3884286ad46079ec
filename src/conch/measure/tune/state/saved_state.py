"""The state of models before the first change, and how to restore it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conch.base.files.atomic import replace_file
from conch.base.typed_json import decode
from conch.measure.tune.knobs import Document
from conch.measure.tune.repository_client import RepositoryClient, ServerAccess, ServerRefusal
from conch.measure.tune.state.folder import StateFolder, remove_durably, write_json

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class SavedModel:
    """A model as it was: `config` is None if it was not served."""

    name: str
    config: Document | None


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of the repository that trials change, as it was; None if it did not exist."""

    path: str
    text: str | None


@dataclass(frozen=True, slots=True)
class SavedState:
    """All models that a run changes. `run` identifies the run."""

    run: str
    pid: int
    started_at: str
    access: ServerAccess
    model: str
    models: tuple[SavedModel, ...]
    files: tuple[SavedFile, ...] = ()

    def save(self, folder: StateFolder) -> None:
        """Write the state durably. Raises OSError."""
        write_json(folder.restore, {"format": _FORMAT, **asdict(self)})


def saved_state(folder: StateFolder) -> SavedState | None:
    """Read the state that is to be restored; None if there is none.

    Raises ValueError for an unreadable file, PermissionError for one that others can write.
    """
    folder.check()
    try:
        value: dict[str, Any] = json.loads(folder.restore.read_bytes())
        if value.pop("format") != _FORMAT:
            raise ValueError("it was written by another version of conch")
        return decode(SavedState, value)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"'{folder.restore}' is damaged: {error}; load the model by hand, then remove it") from None


def save_models(client: RepositoryClient, names: Sequence[str]) -> tuple[SavedModel, ...]:
    """Return the models' present state."""
    return tuple(SavedModel(name, client.config(name) if client.is_ready(name) else None) for name in names)


def restore(client: RepositoryClient, folder: StateFolder, saved: SavedState, say: Callable[[str], None]) -> list[str]:
    """Put all models back; return a message for each that could not be. Forgets the state if all were.

    Raises ServerUnreachable; the state stays saved.
    """
    for file in saved.files:
        put_back(file.path, file.text)
    failures = []
    for model in saved.models:
        try:
            say(f"model '{model.name}': {restore_model(client, model)}")
        except ServerRefusal as refusal:
            failures.append(f"model '{model.name}' cannot be restored: {refusal}")
    if not failures:
        remove_durably(folder.restore)
    return failures


def put_back(path: str, text: str | None) -> None:
    """Write a file as it was; None: remove it. Raises OSError."""
    if text is None:
        Path(path).unlink(missing_ok=True)
    else:
        replace_file(Path(path), text.encode(), 0o600)


def restore_model(client: RepositoryClient, model: SavedModel) -> str:
    """Put one model back and return what was done. Raises ServerRefusal, ServerUnreachable.

    The repository's configuration is loaded first: if that is what was served, the model follows its files again.
    """
    if model.config is None:
        client.unload(model.name)
        return "unloaded, as before"
    try:
        client.load(model.name)
        if client.config(model.name) == model.config:
            return "restored"
    except ServerRefusal:
        pass  # such as a model without a configuration in the repository
    client.load(model.name, model.config)
    return "restored"
