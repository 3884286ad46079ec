"""Listings of remote repositories: the files of each model, with keys that change when the files do.

`RemoteSource` is the interface between a mirror and the kinds of remote repositories.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Protocol, TypeAlias

from conch.base.control_characters import has_control_characters
from conch.base.errors import ConfigError, Unavailable
from conch.domain.files.model_folder import is_model_name
from conch.server.repository.watch import Fingerprint

MAX_PATH_BYTES = 2048
MAX_NAME_BYTES = 255  # of a file, on common file systems
MAX_PATH_DEPTH = 64


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file, or a folder, which has no key. `path` is relative to the model or to the repository.

    An image may contain links and devices that a model must not have, outside of its models; `refused` is the reason.
    """

    path: str
    key: str  # of the object in the cache: hexadecimal, "" for a folder
    size: int
    etag: str = ""  # as sent by the server, "" if it sends none
    refused: str = ""

    @property
    def is_folder(self) -> bool:
        """Whether this is a folder that the source lists explicitly."""
        return not self.key and not self.refused

    @property
    def row(self) -> list[str | int]:
        """The file as a row of an index in the cache."""
        return [self.path, self.key, self.size, self.etag, self.refused]

    @classmethod
    def of_row(cls, row: Sequence[object]) -> "RemoteFile":
        """Return the file of a row. Raises TypeError, ValueError for anything else."""
        path, key, size, etag, refused = row
        return cls(str(path), str(key), int(str(size)), str(etag), str(refused))


Contents: TypeAlias = Mapping[str, tuple[RemoteFile, ...]]  # model → its entries, sorted by path


def key_of(*parts: str) -> str:
    """Return the key of an object, a hash of its location and state."""
    return sha256("\0".join(parts).encode()).hexdigest()


def by_model(entries: Iterable[RemoteFile]) -> dict[str, tuple[RemoteFile, ...]]:
    """Group the entries of a repository by model, that is, by top-level folder; see `is_model_name` for exceptions."""
    models: dict[str, list[RemoteFile]] = {}
    for entry in entries:
        name, slash, path = entry.path.partition("/")
        if slash and path and is_model_name(name):
            models.setdefault(name, []).append(RemoteFile(path, entry.key, entry.size, entry.etag))
    return {name: tuple(sorted(files, key=lambda file: file.path)) for name, files in sorted(models.items())}


def fingerprint_of(entries: Iterable[RemoteFile]) -> Fingerprint:
    """Return a fingerprint that has a part of the key in place of the modification time."""
    return tuple(
        (f"{entry.path}/", 0, 0) if entry.is_folder else (entry.path, int(entry.key[:15], 16), entry.size)
        for entry in entries
    )


def inside(path: str, where: str) -> PurePosixPath:
    """Validate and return a path that a remote repository or a client named.

    Raises ConfigError if it leads out of its folder, is not UTF-8, contains control characters, or is longer or deeper
    than the limits.
    """
    shown = ascii(path[:200])[1:-1]
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: the path '{shown}' is not UTF-8") from None
    relative = PurePosixPath(path)
    if relative.is_absolute() or not relative.parts or ".." in relative.parts or "\0" in path or "\\" in path:
        raise ConfigError(f"{where}: the path '{shown}' leads out of its folder")
    if has_control_characters(path):
        raise ConfigError(f"{where}: the path '{shown}' contains control characters")
    if size > MAX_PATH_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in relative.parts):
        raise ConfigError(
            f"{where}: the path '{shown}…' has {size} bytes; the limits are {MAX_PATH_BYTES}, and {MAX_NAME_BYTES} for "
            "each name in it"
        )
    if len(relative.parts) > MAX_PATH_DEPTH:
        raise ConfigError(
            f"{where}: the path '{shown}…' is {len(relative.parts)} folders deep; the limit is {MAX_PATH_DEPTH}"
        )
    return relative


class ChangedMeanwhile(Unavailable):
    """A listed file has changed or disappeared: the repository must be listed again."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where} was changed while it was being fetched")


class RemoteSource(Protocol):
    """A remote repository. Methods block, and are called by several threads."""

    def contents(self, model: str | None = None) -> Contents:
        """List the whole repository or, where that is less work, one model.

        Raises ConfigError, NotFound, Unavailable (Unreachable if the repository does not answer).
        """

    def fetch(self, model: str, entries: Sequence[RemoteFile]) -> None:
        """Fetch these files of a model into the cache. Raises ChangedMeanwhile, Unavailable."""
