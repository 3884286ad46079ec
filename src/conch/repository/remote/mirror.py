"""A remote repository as one of the server's roots: looks there, and makes a local folder for each load of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from pathlib import Path

from conch.errors import NotFound, Unavailable
from conch.repository.remote.cache import Cache
from conch.repository.remote.contents import Contents, Entry, by_model, fingerprint_of, inside, key_of
from conch.repository.remote.source import ChangedMeanwhile, Source, Unreachable
from conch.repository.remote.tree import complete, read_index, write_index
from conch.repository.roots import Place
from conch.repository.watch import Fingerprint

_log = getLogger(__name__)

# How often a fetch begins anew because something has changed meanwhile.
_ATTEMPTS = 3


class Mirror:
    """One remote repository. `where` is its URL without secrets.

    With `most_bytes`, larger files are left empty where they can be: enough to tell what a model is, not to run it.
    Until the repository has answered for the first time, what an earlier process has fetched of it stands in for it.
    """

    def __init__(self, where: str, source: Source, cache: Cache, most_bytes: int | None = None) -> None:
        self._where = where
        self._source = source
        self._cache = cache
        self._most_bytes = most_bytes
        self._known: Contents = {}
        self._answered = False
        self._index = key_of(where)  # where is written down, for a later process, what there is
        self._noted: Contents = {}

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
        found = self._contents()
        if not found:
            raise NotFound(f"there are no models in {self._where}")
        self._known = found
        if self._answered:
            self._note(found)
            self._cache.prune({entry.key for entries in found.values() for entry in entries})
        return {name: fingerprint_of(entries) for name, entries in found.items()}

    def fingerprint(self, name: str) -> Fingerprint:
        """Look at one model; () if it is not there. Raises Unavailable."""
        self._cache.open()
        return fingerprint_of(self._contents(name).get(name, ()))

    def has(self, name: str) -> bool:
        """Whether there is a model of this name, by the last look or by another one. Raises Unavailable."""
        return name in self._known or bool(self.fingerprint(name))

    def find(self, name: str) -> Place | None:
        """Fetch what has changed of a model and make a folder of it, for one load. None if it is not there.

        Raises Unavailable if it cannot be fetched or keeps changing.
        """
        self._cache.open()
        for _ in range(_ATTEMPTS):
            entries = self._contents(name).get(name, ())
            if not entries:
                return None
            self._known = dict(sorted({**self._known, name: entries}.items()))
            if self._answered:
                self._note({**(self._noted or self._read_notes()), name: entries})
            try:
                folder = self._assemble(name, entries)
            except (ChangedMeanwhile, FileNotFoundError) as error:
                _log.info("%s: model '%s' is fetched anew: %s", self._where, name, error)
                continue
            return Place(folder, fingerprint_of(entries), temporary=True)
        raise Unavailable(f"model '{name}' of {self._where} kept changing while it was being fetched")

    def _contents(self, name: str | None = None) -> Contents:
        """Look at all of the repository or, where that is less work, at one model."""
        try:
            found = self._source.contents(name)
        except Unreachable as error:
            # One that has been seen in this life is waited for: what is served is served on.
            kept = {} if self._answered else self._kept()
            if not kept:
                raise
            if not self._known:
                names = ", ".join(f"'{each}'" for each in kept)
                _log.warning("%s; serving what was fetched before, which may be old: %s", error.message, names)
            return kept
        self._answered = True
        return found

    def _note(self, found: Contents) -> None:
        if found == self._noted:
            return
        entries = [replace(one, path=f"{name}/{one.path}") for name, each in found.items() for one in each]
        try:
            write_index(self._cache, self._index, entries)
        except Unavailable as error:  # what there is can be served all the same
            _log.warning("%s", error.message)
        else:
            self._noted = found

    def _read_notes(self) -> Contents:
        return by_model(read_index(self._cache, self._index) or ())

    def _kept(self) -> Contents:
        """Return the models that there were the last time and of which all is still here."""
        models = self._read_notes()
        return {name: entries for name, entries in models.items() if complete(self._cache, {name: entries})}

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
