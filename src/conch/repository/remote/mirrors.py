"""Which source serves which kind of URL, and where its copies are kept."""

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from conch.errors import ConfigError
from conch.repository.remote.cache import Cache
from conch.repository.remote.download import Downloader, Progress
from conch.repository.remote.location import ArchiveLocation, ImageLocation, Location, parse_location
from conch.repository.remote.mirror import Mirror
from conch.repository.remote.source import RemoteSource


def open_mirror(
    text: str, cache: str = "", *, progress: Progress | None = None, most_bytes: int | None = None
) -> Mirror:
    """Return the mirror of a repository; `cache` is a directory, "" for the usual one. Raises ConfigError.

    `progress` is told of bytes that have come; `most_bytes` is `Mirror`'s.
    """
    location = parse_location(text)
    copies = Cache(_directory(location, cache, os.environ))
    return Mirror(str(location), _source(location, copies, Downloader(copies, progress=progress)), copies, most_bytes)


def _source(location: Location, cache: Cache, downloader: Downloader) -> RemoteSource:
    # Each brings a client of its own, which is imported when somebody needs it.
    if isinstance(location, ArchiveLocation):
        from conch.repository.remote.http_archive import ArchiveSource

        return ArchiveSource(location, cache, downloader)
    if isinstance(location, ImageLocation):
        from conch.repository.remote.oci.image import ImageSource

        return ImageSource(location, cache, downloader)
    from conch.repository.remote.object_store import ObjectStoreSource

    return ObjectStoreSource(location, downloader)


def _directory(location: Location, cache: str, environ: Mapping[str, str]) -> Path:
    # By what is public of the location: a password that is renewed does not cost the copies.
    digest = sha256(str(location).encode()).hexdigest()[:16]
    scheme = str(location).partition("://")[0]
    return (Path(cache) if cache else _usual_directory(environ)) / f"{scheme}-{digest}"


def _usual_directory(environ: Mapping[str, str]) -> Path:
    try:
        return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "conch" / "repositories"
    except RuntimeError as error:  # a user that the system does not know, as containers have them
        raise ConfigError("there is no home directory for copies; --repository-cache names another place") from error
