"""A remote repository as one of the server's roots: looks there, and makes a local folder for each load of a model."""

from collections.abc import Mapping, Sequence
from logging import getLogger
from pathlib import Path

from conch.errors import NotFound, Unavailable
from conch.repository.remote.cache import Cache
from conch.repository.remote.contents import Contents, Entry, fingerprint_of, inside
from conch.repository.remote.source import ChangedMeanwhile, Source
from conch.repository.roots import Place
from conch.repository.watch import Fingerprint

_log = getLogger(__name__)

# How often a fetch begins anew because something has changed meanwhile.
_ATTEMPTS = 3


class Mirror:
    """One remote repository. `where` is its URL without secrets.

    With `most_bytes`, larger files are left empty where they can be: enough to tell what a model is, not to run it.
    """

    def __init__(self, where: str, source: Source, cache: Cache, most_bytes: int | None = None) -> None:
        self._where = where
        self._source = source
        self._cache = cache
        self._most_bytes = most_bytes
        self._known: Contents = {}

    def __str__(self) -> str:
        return self._where

    def names(self) -> list[str]:
        """Return the models that the last look found."""
        return list(self._known)

    def look(self) -> Mapping[str, Fingerprint]:
        """Look at the whole repository. Raises NotFound if nothing is there, ConfigError, Unavailable.

        That all models are gone is no reason to unload them: more likely somebody is about to write them anew.
        """
        self._cache.open()
        found = self._source.contents()
        if not found:
            raise NotFound(f"there are no models in {self._where}")
        self._known = found
        self._cache.prune({entry.key for entries in found.values() for entry in entries})
        return {name: fingerprint_of(entries) for name, entries in found.items()}

    def fingerprint(self, name: str) -> Fingerprint:
        """Look at one model; () if it is not there. Raises Unavailable."""
        self._cache.open()
        return fingerprint_of(self._source.contents(name).get(name, ()))

    def has(self, name: str) -> bool:
        """Whether there is a model of this name, by the last look or by another one. Raises Unavailable."""
        return name in self._known or bool(self.fingerprint(name))

    def find(self, name: str) -> Place | None:
        """Fetch what has changed of a model and make a folder of it, for one load. None if it is not there.

        Raises Unavailable if it cannot be fetched or keeps changing.
        """
        self._cache.open()
        for _ in range(_ATTEMPTS):
            entries = self._source.contents(name).get(name, ())
            if not entries:
                return None
            self._known = dict(sorted({**self._known, name: entries}.items()))
            try:
                folder = self._assemble(name, entries)
            except (ChangedMeanwhile, FileNotFoundError) as error:
                _log.info("%s: model '%s' is fetched anew: %s", self._where, name, error)
                continue
            return Place(folder, fingerprint_of(entries), temporary=True)
        raise Unavailable(f"model '{name}' of {self._where} kept changing while it was being fetched")

    def _assemble(self, name: str, entries: Sequence[Entry]) -> Path:
        most = self._most_bytes
        wanted = [one for one in entries if most is None or one.size <= most]
        self._source.fetch(name, wanted)
        folder = self._cache.assemble(name, wanted, self._where)
        for one in entries:
            if most is not None and one.size > most:
                target = folder / inside(one.path, self._where)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
        return folder
