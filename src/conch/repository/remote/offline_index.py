"""What is remembered of a remote repository from one process to the next: models that the cache holds whole.

A model's files are noted when all of them are there: a version that was fetched in part is never among them, and an
older one that is whole is forgotten only when a newer one is.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from logging import getLogger

from conch.errors import Unavailable
from conch.repository.remote.cache import Cache
from conch.repository.remote.listing import Contents, RemoteFile, key_of
from conch.repository.remote.tree import complete

_log = getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Copy:
    """Models whose files are in the cache, as the repository had them when it last answered."""

    models: Contents
    answered: float  # seconds since 1970

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.answered, UTC)
        return f"{', '.join(repr(name) for name in self.models)} as of {when:%Y-%m-%d %H:%M:%S} UTC"


class Copies:
    """The notes of one repository, in its cache, which other processes may share."""

    def __init__(self, cache: Cache, where: str) -> None:
        self._cache = cache
        self._path = cache.index(key_of(where))

    def read(self) -> Copy:
        """Return the models of which every file is still there, unchanged."""
        noted = self._read()
        models = {name: entries for name, entries in noted.items() if complete(self._cache, {name: entries})}
        return Copy(models, self._path.stat().st_mtime if models else 0.0)

    def keys(self) -> set[str]:
        """Return the keys of all objects that are noted."""
        return {entry.key for entries in self._read().values() for entry in entries}

    def note(self, found: Contents) -> None:
        """Note what the repository holds now: all of its models."""
        noted = self._read()
        self._write({name: self._whole(entries, noted.get(name)) for name, entries in found.items()}, noted)

    def note_model(self, name: str, entries: Iterable[RemoteFile]) -> None:
        """Note what the repository holds of one model now."""
        noted = self._read()
        self._write({**noted, name: self._whole(tuple(entries), noted.get(name))}, noted)

    def _whole(self, entries: tuple[RemoteFile, ...], noted: tuple[RemoteFile, ...] | None) -> tuple[RemoteFile, ...]:
        """Return the newest state of a model that is whole, () if there is none."""
        if entries == noted or complete(self._cache, {"": entries}):
            return entries
        return noted or ()

    def _read(self) -> dict[str, tuple[RemoteFile, ...]]:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            return {str(name): tuple(map(_entry, rows)) for name, rows in document.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def _write(self, models: Contents, noted: Contents) -> None:
        kept = {name: entries for name, entries in sorted(models.items()) if entries}
        try:
            if kept != noted:
                self._replace(kept)
            if kept:
                with self._cache.writing():
                    os.utime(self._path)
        except (Unavailable, FileNotFoundError) as error:  # what there is can be served all the same
            _log.warning("what the repository cache holds cannot be noted: %s", error)

    def _replace(self, models: Contents) -> None:
        document = {
            name: [[one.path, one.key, one.size, one.etag] for one in entries] for name, entries in models.items()
        }
        with self._cache.new_file() as (file, stream):
            with self._cache.writing():
                stream.write(json.dumps(document).encode())
                stream.flush()
            self._cache.commit(file, self._path)


def _entry(row: list[object]) -> RemoteFile:
    path, key, size, etag = row
    return RemoteFile(str(path), str(key), int(str(size)), str(etag))
