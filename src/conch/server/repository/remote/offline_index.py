"""Index of the models in the cache that are complete, to serve them while the remote repository does not answer.

The index is kept on disk between processes. A state of a model enters it only when all of its files are cached, and
stays until a newer state is complete.
"""

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from logging import getLogger

from conch.base.errors import Unavailable
from conch.server.repository.remote.cache import Cache
from conch.server.repository.remote.listing import Contents, RemoteFile, key_of
from conch.server.repository.remote.tree import complete

_log = getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CachedModels:
    """Models whose files are all in the cache, in their state of the repository's last answer."""

    models: Contents
    answered: float  # seconds since 1970

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.answered, UTC)
        return f"{', '.join(repr(name) for name in self.models)} as of {when:%Y-%m-%d %H:%M:%S} UTC"


class OfflineIndex:
    """The index of one repository, in its cache, which other processes may share."""

    def __init__(self, cache: Cache, where: str) -> None:
        self._cache = cache
        self._key = key_of(where)
        self._path = cache.index(self._key)
        # Models are loaded in several threads: an update must not overwrite another one.
        self._lock = threading.Lock()

    def read(self) -> CachedModels:
        """Return the models whose files are all still in the cache, unchanged."""
        indexed = self._read()
        models = {name: entries for name, entries in indexed.items() if complete(self._cache, {name: entries})}
        return CachedModels(models, self._path.stat().st_mtime if models else 0.0)

    def keys(self) -> set[str]:
        """Return the keys of all indexed objects."""
        return {entry.key for entries in self._read().values() for entry in entries}

    def update(self, found: Contents) -> None:
        """Update the index with the current contents of the repository."""
        with self._lock:
            indexed = self._read()
            self._write({name: self._complete(entries, indexed.get(name)) for name, entries in found.items()}, indexed)

    def update_model(self, name: str, entries: Iterable[RemoteFile]) -> None:
        """Update the index with the current contents of one model."""
        with self._lock:
            indexed = self._read()
            self._write({**indexed, name: self._complete(tuple(entries), indexed.get(name))}, indexed)

    def _complete(
        self, entries: tuple[RemoteFile, ...], indexed: tuple[RemoteFile, ...] | None
    ) -> tuple[RemoteFile, ...]:
        """Return the newest complete state of a model, () if there is none."""
        if entries == indexed or complete(self._cache, {"": entries}):
            return entries
        return indexed or ()

    def _read(self) -> dict[str, tuple[RemoteFile, ...]]:
        try:
            rows = self._cache.read_index(self._key)
            return {str(name): tuple(map(RemoteFile.of_row, listed)) for name, listed in rows.items()}
        except (ValueError, TypeError, AttributeError):
            return {}

    def _write(self, models: Contents, indexed: Contents) -> None:
        kept = {name: entries for name, entries in sorted(models.items()) if entries}
        try:
            if kept != indexed:
                document = {name: [entry.row for entry in entries] for name, entries in kept.items()}
                self._cache.write_index(self._key, document)
            if kept:
                with self._cache.writing():
                    os.utime(self._path)
        except (Unavailable, FileNotFoundError) as error:  # the models can still be served
            _log.warning(
                "the index of the repository cache cannot be written; models may be unavailable while the repository "
                "does not answer: %s",
                error,
            )
