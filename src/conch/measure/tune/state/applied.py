"""Apply a configuration for good, and roll back: in the files of a local repository, or as overrides on the server."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from difflib import unified_diff
from pathlib import Path

from conch.base.typed_json import decode
from conch.measure.tune.deployment import read_if_exists
from conch.measure.tune.knobs import Document, backend_of, with_settings
from conch.measure.tune.pbtxt_edit import changed_fields, edit_pbtxt, fields_text
from conch.measure.tune.repository_client import RepositoryClient, ServerAccess
from conch.measure.tune.space import Value
from conch.measure.tune.state.folder import StateFolder, remove_durably, write_json
from conch.measure.tune.state.saved_state import SavedModel, put_back, restore_model


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file and its texts before and after; None where it did not exist."""

    path: str
    before: str | None
    after: str


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """What was applied: files of a repository, or, without any, configurations on the server."""

    applied_at: str
    access: ServerAccess
    models: tuple[SavedModel, ...]
    files: tuple[FileChange, ...]

    def save(self, folder: StateFolder) -> None:
        """Write it durably. Raises OSError."""
        write_json(folder.applied, asdict(self))


def file_change(repository: Path, model: str, base: Document, settings: Mapping[str, Value]) -> FileChange | None:
    """Return the change of a model's config.pbtxt; None if nothing changes. Raises ConfigError, OSError."""
    path = repository / model / "config.pbtxt"
    before = read_if_exists(path)
    after = edit_pbtxt(before or "", lambda document: with_settings(document, settings), str(path), backend_of(base))
    return None if after == (before or "") else FileChange(str(path), before, after)


def fields_difference(model: str, base: Document, settings: Mapping[str, Value]) -> str:
    """Return a unified diff of the fields that change, for a repository whose files are not at hand."""
    changed = with_settings(base, settings)
    names = changed_fields(base, changed)
    return _unified(fields_text(base, names), fields_text(changed, names), f"{model}/config.pbtxt")


def file_difference(change: FileChange) -> str:
    """Return a unified diff of a file."""
    return _unified(change.before or "", change.after, change.path)


def _unified(before: str, after: str, label: str) -> str:
    lines = unified_diff(before.splitlines(), after.splitlines(), label, label, lineterm="")
    return "".join(f"{line}\n" for line in lines)


def apply_to_repository(
    client: RepositoryClient,
    folder: StateFolder,
    changes: Sequence[tuple[str, FileChange]],
    models: tuple[SavedModel, ...],
) -> None:
    """Write the files, each of a model, and load the models from them. If a load fails, the files are put back.

    Raises ServerRefusal, ServerUnreachable, OSError.
    """
    record = AppliedChange(_now(), client.access, models, tuple(change for _, change in changes))
    record.save(folder)
    try:
        for _, change in changes:
            put_back(change.path, change.after)
        for model in dict.fromkeys(name for name, _ in changes):
            client.load(model)
    except BaseException:
        for _, change in changes:
            put_back(change.path, change.before)
        remove_durably(folder.applied)
        raise


def apply_to_server(
    client: RepositoryClient,
    folder: StateFolder,
    documents: Mapping[str, Document],
    models: tuple[SavedModel, ...],
) -> None:
    """Load configurations in place of those of the repository, until the models or the server are loaded again.

    If one fails, all are restored. Raises ServerRefusal, ServerUnreachable, OSError.
    """
    AppliedChange(_now(), client.access, models, ()).save(folder)
    try:
        for model, document in documents.items():
            client.load(model, document)
    except BaseException:
        for saved in models:
            restore_model(client, saved)
        remove_durably(folder.applied)
        raise


def read_applied(folder: StateFolder) -> AppliedChange | None:
    """Return what was applied last, None if nothing is or it was rolled back. Raises ValueError, PermissionError."""
    folder.check()
    text = read_if_exists(folder.applied)
    if text is None:
        return None
    try:
        return decode(AppliedChange, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"'{folder.applied}' is damaged: {error}; undo the change by hand, then remove it") from None


def roll_back(client: RepositoryClient, folder: StateFolder, change: AppliedChange) -> list[str]:
    """Undo what was applied; return what was done, one line each.

    Raises ValueError if a file was changed since, which then stays; ServerRefusal, ServerUnreachable, OSError.
    """
    for file in change.files:
        if read_if_exists(Path(file.path)) not in (file.after, file.before):
            raise ValueError(f"'{file.path}' was changed since; undo the change of {change.applied_at} by hand")
    done = []
    for file in change.files:
        put_back(file.path, file.before)
        done.append(f"'{file.path}' restored")
    done.extend(f"model '{model.name}': {restore_model(client, model)}" for model in change.models)
    remove_durably(folder.applied)
    return done


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
