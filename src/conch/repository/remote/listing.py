"""What a remote repository holds: files by model, each with a key that changes when the file does. Values only."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePosixPath
from typing import TypeAlias

from conch.errors import ConfigError
from conch.repository.model_folders import is_model_name
from conch.repository.watch import Fingerprint

MAX_PATH_BYTES = 2048
MAX_NAME_BYTES = 255  # of a file, on any file system in use
MAX_PATH_DEPTH = 64


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file, or an empty folder, which has no key. `path` is relative to the model, or to the repository."""

    path: str
    key: str  # of the object in the cache: hexadecimal, "" for a folder
    size: int
    etag: str = ""  # as the server writes it, where it has one

    @property
    def is_folder(self) -> bool:
        """Whether this is a folder that the source names for itself."""
        return not self.key


Contents: TypeAlias = Mapping[str, tuple[RemoteFile, ...]]  # model → its entries, sorted by path


def key_of(*parts: str) -> str:
    """Return the key of an object that is known by where it is and which state of it this is."""
    return sha256("\0".join(parts).encode()).hexdigest()


def by_model(entries: Iterable[RemoteFile]) -> dict[str, tuple[RemoteFile, ...]]:
    """Sort the entries of a repository into its models: the folders at its top, but for those of other uses."""
    models: dict[str, list[RemoteFile]] = {}
    for entry in entries:
        name, slash, path = entry.path.partition("/")
        if slash and path and is_model_name(name):
            models.setdefault(name, []).append(RemoteFile(path, entry.key, entry.size, entry.etag))
    return {name: tuple(sorted(found, key=lambda one: one.path)) for name, found in sorted(models.items())}


def fingerprint_of(entries: Iterable[RemoteFile]) -> Fingerprint:
    """Return a fingerprint in which the key stands where a file on disk has its time of modification."""
    return tuple(
        (f"{entry.path}/", 0, 0) if entry.is_folder else (entry.path, int(entry.key[:15], 16), entry.size)
        for entry in entries
    )


def inside(path: str, where: str) -> PurePosixPath:
    """Return a path that was named by a peer.

    Raises ConfigError if it leads out of the folder that it is for, is not UTF-8, or is longer or deeper than file
    systems and what walks through folders can take.
    """
    shown = ascii(path[:200])[1:-1]
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: the path '{shown}' is not UTF-8") from None
    relative = PurePosixPath(path)
    if relative.is_absolute() or not relative.parts or ".." in relative.parts or "\0" in path or "\\" in path:
        raise ConfigError(f"{where}: the path '{shown}' leads out of the repository")
    if size > MAX_PATH_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in relative.parts):
        raise ConfigError(
            f"{where}: the path '{shown}…' has {size} bytes; {MAX_PATH_BYTES} are the most, {MAX_NAME_BYTES} of a name"
        )
    if len(relative.parts) > MAX_PATH_DEPTH:
        raise ConfigError(
            f"{where}: the path '{shown}…' is {len(relative.parts)} folders deep; {MAX_PATH_DEPTH} are the most"
        )
    return relative
