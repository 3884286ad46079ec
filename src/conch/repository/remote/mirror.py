"""A remote repository as one of the server's roots: looks there, and makes a local folder for each load of a model."""

from collections.abc import Mapping, Sequence
from logging import getLogger
from pathlib import Path
from time import monotonic

from conch.errors import NotFound, Unavailable
from conch.repository.remote.cache import Cache
from conch.repository.remote.listing import Contents, RemoteFile, fingerprint_of, inside
from conch.repository.remote.offline_index import Copies
from conch.repository.remote.source import ChangedMeanwhile, RemoteSource, Unreachable
from conch.repository.roots import ModelLocation
from conch.repository.watch import Fingerprint

_log = getLogger(__name__)

# How often a fetch begins anew because something has changed meanwhile.
_ATTEMPTS = 3
# Where it takes longer than this to learn that nobody answers, that is not asked for each model of a start. In seconds.
_SLOW_S = 5.0


class Mirror:
    """One remote repository. `where` is its URL without secrets.

    With `most_bytes`, larger files are left empty where they can be: enough to tell what a model is, not to run it.
    Until the repository has answered for the first time, what earlier processes have fetched of it stands in for it:
    models of which all files are there. One that has answered is waited for: what is served is served on.
    """

    def __init__(self, where: str, source: RemoteSource, cache: Cache, most_bytes: int | None = None) -> None:
        self._where = where
        self._source = source
        self._cache = cache
        self._most_bytes = most_bytes
        self._known: Contents = {}
        self._copies = Copies(cache, where)
        self._answered = False
        self._cause = ""  # why it has not
        self._ask_from = 0.0  # in monotonic seconds

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
            self._copies.note(found)
            self._cache.prune(self._copies.keys() | {entry.key for entries in found.values() for entry in entries})
        return {name: fingerprint_of(entries) for name, entries in found.items()}

    def fingerprint(self, name: str) -> Fingerprint:
        """Look at one model; () if it is not there. Raises Unavailable."""
        self._cache.open()
        return fingerprint_of(self._contents(name).get(name, ()))

    def check_answers(self, name: str) -> None:
        """Raise Unreachable with the cause if what was told last of a model is of its copy."""
        if not self._answered and name in self._known:
            raise Unreachable(f"{self._cause}; model '{name}' is its copy")

    def has(self, name: str) -> bool:
        """Whether there is a model of this name, by the last look or by another one. Raises Unavailable."""
        return name in self._known or bool(self.fingerprint(name))

    def find(self, name: str) -> ModelLocation | None:
        """Fetch what has changed of a model and make a folder of it, for one load. None if it is not there.

        Raises Unavailable if it cannot be fetched or keeps changing.
        """
        self._cache.open()
        for _ in range(_ATTEMPTS):
            entries = self._contents(name).get(name, ())
            if not entries:
                return None
            self._known = dict(sorted({**self._known, name: entries}.items()))
            try:
                folder = self._assemble(name, entries)
            except (ChangedMeanwhile, FileNotFoundError) as error:
                _log.info("%s: model '%s' is fetched anew: %s", self._where, name, error)
                continue
            if self._answered:
                self._copies.note_model(name, entries)
            else:
                _log.info("model '%s' is loaded from its copy: %s", name, self._cause)
            return ModelLocation(folder, fingerprint_of(entries), temporary=True)
        raise Unavailable(f"model '{name}' of {self._where} kept changing while it was being fetched")

    def _contents(self, name: str | None = None) -> Contents:
        """Look at all of the repository or, where that is less work, at one model."""
        if self._answered:
            return self._source.contents(name)
        begun = monotonic()
        if begun < self._ask_from:
            return self._stand_in()
        try:
            found = self._source.contents(name)
        except Unreachable as error:
            self._cause = error.message
            took = monotonic() - begun
            self._ask_from = begun + 2 * took if took > _SLOW_S else 0.0
            return self._stand_in()
        self._answered = True
        return found

    def _stand_in(self) -> Contents:
        """Return what can be served without the repository. Raises Unreachable if that is nothing."""
        copy = self._copies.read()
        if not copy.models:
            raise Unreachable(self._cause)
        if not self._known:
            _log.warning("%s; until it answers, copies are served: %s", self._cause, copy)
        return copy.models

    def _assemble(self, name: str, entries: Sequence[RemoteFile]) -> Path:
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
