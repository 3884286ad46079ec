"""Repositories in an archive behind HTTP, which is fetched again when its ETag changes."""

import re
import threading
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

from conch.base.archives import ArchiveLimits
from conch.base.errors import NotFound, Unavailable, Unreachable
from conch.base.http.client import HttpClient, HttpResponse
from conch.server.repository.remote.archive import Unpacker
from conch.server.repository.remote.cache import Cache
from conch.server.repository.remote.download import Buffer, Download, Downloader
from conch.server.repository.remote.listing import ChangedMeanwhile, Contents, RemoteFile, key_of
from conch.server.repository.remote.location import ArchiveLocation
from conch.server.repository.remote.tree import complete, models_of, read_index, write_index

_CONTENT_RANGE = re.compile(r"bytes \d+-\d+/(\d+)")


@dataclass(frozen=True, slots=True)
class _State:
    """The archive's state by the headers of the server."""

    etag: str  # strong, or ""
    weak_etag: str
    modified: str
    size: int
    in_parts: bool

    @property
    def condition(self) -> dict[str, str]:
        """Request headers that make the server refuse if the state has changed."""
        if self.etag:
            return {"If-Match": self.etag}
        return {"If-Unmodified-Since": self.modified} if self.modified else {}


class ArchiveSource:
    """One archive. It is fetched whole when it has changed; its listing and files are cached."""

    def __init__(
        self, location: ArchiveLocation, cache: Cache, downloader: Downloader, limits: ArchiveLimits | None = None
    ) -> None:
        parts = urlsplit(location.url)
        self._location = location
        self._url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        self._headers = {"Authorization": f"Basic {b64encode(user.encode()).decode()}"} if parts.username else {}
        self._cache = cache
        self._downloader = downloader
        self._limits = limits
        self._client = HttpClient()
        self._lock = threading.Lock()

    def contents(self, model: str | None = None) -> Contents:  # noqa: ARG002 - an archive is fetched whole
        """Fetch and unpack the archive if it has changed. Raises ConfigError, Unavailable."""
        with self._lock:
            state = self._look()
            key = key_of(str(self._location), state.etag or state.weak_etag or state.modified, str(state.size))
            entries = read_index(self._cache, key)
            models = None if entries is None else models_of(entries, self._location.stem)
            if models is None or not complete(self._cache, models):
                models = models_of(self._fetch(key, state), self._location.stem)
            return models

    def fetch(self, model: str, entries: Sequence[RemoteFile]) -> None:
        """Check that all files are in the cache. Raises ChangedMeanwhile."""
        if not all(entry.is_folder or self._cache.has(entry.key) for entry in entries):
            raise ChangedMeanwhile(f"the cache of {self._location}, model '{model}',")

    def _look(self) -> _State:
        # The first byte instead of a HEAD request, which a signed URL does not allow.
        with self._client.open("GET", self._url, {**self._headers, "Range": "bytes=0-0"}) as answer:
            self._check(answer)
            etag = answer.headers.get("etag", "")
            total = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
            length = total[1] if total else answer.headers.get("content-length", "")
            if not length.isdigit():
                raise Unavailable(f"{self._location}: the server sends no Content-Length")
            modified = answer.headers.get("last-modified", "")
            if not etag and not modified:
                raise Unavailable(f"{self._location}: the server sends neither ETag nor Last-Modified")
            weak = etag.startswith("W/")
            in_parts = answer.status == 206
            return _State("" if weak else etag, etag if weak else "", modified, int(length), in_parts)

    def _fetch(self, key: str, state: _State) -> list[RemoteFile]:
        download = Download(
            key=key,
            name=str(self._location),
            size=state.size,
            read=lambda start, end: self._read(state, start, end),
            # Without a strong validator, parts of two archives could be mixed.
            in_parts=state.in_parts and bool(state.etag),
        )
        self._downloader.fetch([download])
        unpacker = Unpacker(self._cache, str(self._location), self._limits)
        try:
            entries = unpacker.unpack(self._cache.object(key), self._location.suffix)
        finally:
            self._cache.object(key).unlink(missing_ok=True)
        write_index(self._cache, key, entries)
        return entries

    def _read(self, state: _State, start: int, end: int) -> Iterator[Buffer]:
        headers = {**self._headers, **state.condition}
        part = (start, end) != (0, state.size)
        if part:
            headers["Range"] = f"bytes={start}-{end - 1}"
        with self._client.open("GET", self._url, headers) as answer:
            self._check(answer)
            etag = answer.headers.get("etag", "")
            if answer.status == 412 or (state.etag and etag and etag != state.etag):
                raise ChangedMeanwhile(str(self._location))
            if part and answer.status != 206:
                raise Unavailable(f"{self._location}: the server sent the whole archive instead of a part")
            yield from answer.stream()

    def _check(self, answer: HttpResponse) -> None:
        if answer.status in (200, 206, 412):
            return
        causes = {401: "access denied: 401", 403: "access denied: 403", 416: "is empty"}
        kind = NotFound if answer.status in (404, 410) else Unreachable if answer.status >= 500 else Unavailable
        raise kind(f"{self._location}: {causes.get(answer.status, f'the server answered {answer.status}')}")
