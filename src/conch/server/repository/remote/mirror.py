"""Mirror a remote repository: scan it, and create a local folder for each load of a model."""

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from logging import getLogger
from pathlib import Path
from time import monotonic

from conch.base.errors import ConfigError, NotFound, Unavailable, Unreachable
from conch.server.repository.disk_space import NoSpace
from conch.server.repository.model_location import ModelLocation
from conch.server.repository.remote.cache import Cache
from conch.server.repository.remote.download import Downloader, FetchProgress
from conch.server.repository.remote.listing import (
    ChangedMeanwhile,
    Contents,
    RemoteFile,
    RemoteSource,
    fingerprint_of,
    inside,
    key_of,
)
from conch.server.repository.remote.location import (
    ArchiveLocation,
    ImageLocation,
    Location,
    ObjectStoreLocation,
    parse_location,
)
from conch.server.repository.remote.tree import complete
from conch.server.repository.watch import Fingerprint

_log = getLogger(__name__)

# How often a fetch is tried if files change while they are fetched.
_MAX_ATTEMPTS = 3
# If a request fails only after this time, the next one is delayed, so that a start does not wait for every model.
_SLOW_FAILURE_S = 5.0


class Mirror:
    """One remote repository. `where` is its URL without secrets.

    With `max_file_bytes`, larger files are not fetched but created empty: enough to show a model, not to run it. Until
    the repository answers for the first time, models are served from the cache if all of their files are in it. After
    that, a repository that does not answer is an error, and the server keeps the loaded models.
    """

    def __init__(
        self, where: str, source: RemoteSource, cache: Cache, max_file_bytes: int | None = None, trust: str = ""
    ) -> None:
        """Create a mirror. `trust` is what was verified: a cache that was filled without it is not served."""
        self._where = where
        self._source = source
        self._cache = cache
        self._max_file_bytes = max_file_bytes
        self._known: Contents = {}
        self._offline_index = OfflineIndex(cache, f"{where}\0{trust}" if trust else where)
        self._answered = False
        self._cause = ""  # of the last failure before the first answer
        self._retry_at_s = 0.0  # monotonic

    def __str__(self) -> str:
        return self._where

    def names(self) -> list[str]:
        """Return the models that the last scan found."""
        return list(self._known)

    def scan(self) -> Mapping[str, Fingerprint]:
        """Scan the whole repository. Raises NotFound if it is empty, ConfigError, Unavailable.

        An empty repository is an error, so that nothing is unloaded: probably its files are being replaced.
        """
        self._cache.open()
        contents = self._contents()
        if not contents:
            raise NotFound(f"there are no models in {self._where}")
        self._known = contents
        if self._answered:
            self._offline_index.update(contents)
            self._prune()
        return {name: fingerprint_of(entries) for name, entries in contents.items()}

    def fingerprint(self, name: str) -> Fingerprint:
        """Scan one model and return its fingerprint, () if it does not exist. Raises Unavailable."""
        self._cache.open()
        return fingerprint_of(self._contents(name).get(name, ()))

    def check_reachable(self, name: str) -> None:
        """Raise Unreachable with the cause if a model is served from the cache."""
        if not self._answered and name in self._known:
            raise Unreachable(f"{self._cause}; model '{name}' is served from the cache")

    def has(self, name: str) -> bool:
        """Whether a model of this name exists, by the last scan or a new one. Raises Unavailable."""
        return name in self._known or bool(self.fingerprint(name))

    def find(self, name: str) -> ModelLocation | None:
        """Fetch the changed files of a model and create a folder for one load. None if the model does not exist.

        Raises Unavailable if it cannot be fetched or keeps changing.
        """
        self._cache.open()
        for _ in range(_MAX_ATTEMPTS):
            entries = self._contents(name).get(name, ())
            if not entries:
                return None
            self._known = dict(sorted({**self._known, name: entries}.items()))
            try:
                folder = self._assemble(name, entries)
            except (ChangedMeanwhile, FileNotFoundError) as error:
                _log.info("%s: model '%s' changed while it was fetched; retrying: %s", self._where, name, error)
                continue
            if self._answered:
                self._offline_index.update_model(name, entries)
            else:
                _log.info("model '%s' is loaded from the cache: %s", name, self._cause)
            return ModelLocation(folder, fingerprint_of(entries), temporary=True)
        raise Unavailable(f"model '{name}' of {self._where} kept changing while it was being fetched")

    def _contents(self, name: str | None = None) -> Contents:
        """List the whole repository or, where that is less work, one model; from the cache until the first answer."""
        if self._answered:
            return self._pruned_after_refusal(name)
        started_s = monotonic()
        if started_s < self._retry_at_s:
            return self._offline_contents()
        try:
            contents = self._pruned_after_refusal(name)
        except Unreachable as error:
            self._cause = error.message
            duration_s = monotonic() - started_s
            self._retry_at_s = started_s + 2 * duration_s if duration_s > _SLOW_FAILURE_S else 0.0
            return self._offline_contents()
        self._answered = True
        return contents

    def _pruned_after_refusal(self, name: str | None) -> Contents:
        """Return what the source lists. A refused archive or image leaves no objects. Raises as the source."""
        try:
            return self._source.contents(name)
        except (ConfigError, NoSpace):
            self._prune()
            raise

    def _prune(self) -> None:
        """Remove the objects that neither a load uses nor a known or cached model needs."""
        known = {entry.key for entries in self._known.values() for entry in entries}
        self._cache.prune(self._offline_index.keys() | known)

    def _offline_contents(self) -> Contents:
        """Return the models that can be served from the cache. Raises Unreachable if there are none."""
        cached = self._offline_index.read()
        if not cached.models:
            raise Unreachable(
                f"{self._cause}; nothing is cached to use instead: check the address, the network and the proxy, "
                "or name a filled cache with --repository-cache"
            )
        if not self._known:
            _log.warning("%s; until it answers, models are served from the cache: %s", self._cause, cached)
        return cached.models

    def _assemble(self, name: str, entries: Sequence[RemoteFile]) -> Path:
        limit = self._max_file_bytes
        fetched = [entry for entry in entries if limit is None or entry.size <= limit]
        try:
            self._source.fetch(name, fetched)
        except NoSpace:  # earlier states of models take space until the next scan
            self._prune()
            self._source.fetch(name, fetched)
        folder = self._cache.assemble(name, fetched, self._where)
        for entry in entries:
            if limit is not None and entry.size > limit:
                target = folder / inside(entry.path, self._where)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()
        return folder


def open_mirror(
    url: str,
    cache: str = "",
    *,
    progress: FetchProgress | None = None,
    max_file_bytes: int | None = None,
    verify_key: str = "",
    platform: str = "",
    shared: bool = False,
    cache_limit: int = 0,
) -> Mirror:
    """Return the mirror of a repository; `cache` is a directory, "" for the default one. Raises ConfigError.

    `progress` gets the numbers of bytes to fetch and received; `max_file_bytes` is that of `Mirror`. `verify_key` and
    `platform` are for images: the file with the public key that must have signed it, and the platform to choose in an
    index, "" for this machine's. With `shared`, all repositories use `cache` itself, not a folder each. `cache_limit`
    is the maximum of bytes for the copies, 0 for no limit.
    """
    location = parse_location(url)
    if verify_key and not isinstance(location, ImageLocation):
        raise ConfigError(f"'{location}' is not an OCI image; signatures are verified only for oci:// repositories")
    objects = Cache(Path(cache) if shared else _directory(location, cache, os.environ), cache_limit)
    downloader = Downloader(objects, progress=progress)
    if isinstance(location, ImageLocation):
        from conch.server.repository.remote.oci.image import ImageSource
        from conch.server.repository.remote.oci.signature import SignatureVerifier

        verifier = SignatureVerifier(verify_key) if verify_key else None
        images = ImageSource(location, objects, downloader, verifier=verifier, platform=platform)
        trust = f"{verifier or ''}\0{platform}".strip("\0")
        return Mirror(str(location), images, objects, max_file_bytes, trust)
    return Mirror(str(location), _source(location, objects, downloader), objects, max_file_bytes)


def _source(location: ObjectStoreLocation | ArchiveLocation, cache: Cache, downloader: Downloader) -> RemoteSource:
    # Each source imports another client library, so only the one that is needed is imported.
    if isinstance(location, ArchiveLocation):
        from conch.server.repository.remote.http_archive import ArchiveSource

        return ArchiveSource(location, cache, downloader)
    from conch.server.repository.remote.object_store import ObjectStoreSource

    return ObjectStoreSource(location, downloader)


def _directory(location: Location, cache: str, environ: Mapping[str, str]) -> Path:
    # From the URL without secrets: a new password must not invalidate the cache.
    digest = sha256(str(location).encode()).hexdigest()[:16]
    scheme = str(location).partition("://")[0]
    return (Path(cache) if cache else _default_directory(environ)) / f"{scheme}-{digest}"


def _default_directory(environ: Mapping[str, str]) -> Path:
    try:
        return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "conch" / "repositories"
    except RuntimeError as error:  # a user without an entry in the system's user database, as in containers
        raise ConfigError("no home directory for the repository cache; set --repository-cache") from error


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

    def update(self, contents: Contents) -> None:
        """Update the index with the current contents of the repository."""
        with self._lock:
            indexed = self._read()
            self._write(
                {name: self._complete(entries, indexed.get(name)) for name, entries in contents.items()}, indexed
            )

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
