"""Archives and layers of images, taken apart into objects of the cache.

What comes from elsewhere may be meant to harm: paths that climb, links that lead out, devices, and archives that grow
without end. All of it is refused, whole.
"""

import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import IO, BinaryIO

from conch.errors import ConfigError
from conch.repository.remote.cache import Cache
from conch.repository.remote.contents import Entry, inside

_CHUNK_BYTES = 1024 * 1024
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError)


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """How far an archive may grow. Files of weights hardly compress, so a high ratio of much is an attack."""

    total_bytes: int = 1 << 40
    ratio: int = 100
    ratio_from_bytes: int = 1 << 30  # below, the ratio does not matter
    entries: int = 200_000


class Unpacker:
    """Takes archives apart. `where` is for messages."""

    def __init__(self, cache: Cache, where: str, limits: ArchiveLimits | None = None) -> None:
        self._cache = cache
        self._where = where
        self._limits = limits or ArchiveLimits()

    def unpack(self, file: Path, suffix: str) -> list[Entry]:
        """Put the files of an archive into the cache, by the SHA-256 of their contents, and return its entries.

        A link becomes what it points to. Raises ConfigError for an archive that is broken or not to be trusted,
        Unavailable if the cache is full.
        """
        found: dict[str, Entry] = {}
        links: dict[str, str] = {}
        budget = _Budget(self._limits, file.stat().st_size, self._where)
        members = self._zip(file, links) if suffix == ".zip" else self._tar(file, links)
        try:
            for path, stream in members:
                budget.count()
                if stream is None:
                    found[path] = Entry(path, "", 0)
                else:
                    found[path] = self._store(path, stream, budget)
        except _BROKEN as error:
            raise ConfigError(f"{self._where}: the archive is truncated or damaged: {error}") from error
        except (OSError, RuntimeError, NotImplementedError) as error:
            # gzip says OSError of what is no gzip, zipfile RuntimeError of what is encrypted.
            raise ConfigError(f"{self._where}: the archive cannot be read: {error}") from error
        # Of two entries with one path the later one counts, as when they are written out.
        return list((found | {entry.path: entry for entry in self._followed(links, found)}).values())

    def _tar(self, file: Path, links: dict[str, str]) -> Iterator[tuple[str, IO[bytes] | None]]:
        with file.open("rb") as packed, self._opened(packed) as archive:
            for member in archive:
                if (path := self._path(member.name)) == ".":
                    continue
                if member.isdir():
                    yield path, None
                elif member.isreg():
                    yield path, archive.extractfile(member)
                elif member.issym():
                    links[path] = self._target(path, str(PurePosixPath(path).parent / member.linkname))
                elif member.islnk():
                    links[path] = self._target(path, member.linkname)
                else:
                    raise ConfigError(f"{self._where}: '{path}' is a device or pipe, which no model needs")

    def _opened(self, packed: BinaryIO) -> tarfile.TarFile:
        begin = packed.read(len(_ZSTD_MAGIC))
        packed.seek(0)
        if begin != _ZSTD_MAGIC:
            return tarfile.open(fileobj=packed)
        # Imported where it is needed: what comes from most places is compressed with gzip.
        from conch.repository.remote.zstd import opened

        return tarfile.open(fileobj=opened(packed), mode="r|")

    def _zip(self, file: Path, links: dict[str, str]) -> Iterator[tuple[str, IO[bytes] | None]]:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if (path := self._path(member.filename)) == ".":
                    continue
                kind = stat.S_IFMT(member.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                    raise ConfigError(f"{self._where}: '{path}' is a device or pipe, which no model needs")
                if member.is_dir():
                    yield path, None
                elif kind == stat.S_IFLNK:
                    target = archive.read(member).decode() if member.file_size < 4096 else "/"
                    links[path] = self._target(path, str(PurePosixPath(path).parent / target))
                else:
                    with archive.open(member) as stream:
                        yield path, stream

    def _path(self, name: str) -> str:
        if PurePosixPath(name) == PurePosixPath():
            return "."
        return str(inside(name, self._where))

    def _target(self, path: str, target: str) -> str:
        """Return where a link points to, which must be inside, as a path from the top."""
        resolved = normpath(target)
        if resolved.startswith(("/", "../")) or resolved in ("..", "."):
            raise ConfigError(f"{self._where}: the link '{path}' leads out of the repository")
        return resolved

    def _store(self, path: str, stream: IO[bytes], budget: "_Budget") -> Entry:
        digest, size = sha256(), 0
        with self._cache.new_file() as (file, target):
            while chunk := stream.read(_CHUNK_BYTES):
                budget.spend(len(chunk))
                digest.update(chunk)
                size += len(chunk)
                with self._cache.writing():
                    target.write(chunk)
            with self._cache.writing():
                target.flush()
            key = digest.hexdigest()
            if not self._cache.has(key):
                self._cache.commit(file, self._cache.object(key))
        return Entry(path, key, size)

    def _followed(self, links: dict[str, str], found: dict[str, Entry]) -> Iterator[Entry]:
        for path, target in links.items():
            seen = {path}
            while target in links and target not in seen:
                seen.add(target)
                target = links[target]
            below = [entry for entry in found.values() if entry.path == target or entry.path.startswith(f"{target}/")]
            if not below:
                raise ConfigError(f"{self._where}: the link '{path}' leads to '{target}', which is not in the archive")
            for entry in below:
                yield Entry(path + entry.path[len(target) :], entry.key, entry.size)


class _Budget:
    """Counts what an archive becomes."""

    def __init__(self, limits: ArchiveLimits, packed: int, where: str) -> None:
        self._limits = limits
        self._most = min(limits.total_bytes, max(limits.ratio_from_bytes, limits.ratio * packed))
        self._where = where
        self._bytes = self._entries = 0

    def count(self) -> None:
        self._entries += 1
        if self._entries > self._limits.entries:
            raise ConfigError(f"{self._where}: more than {self._limits.entries} files")

    def spend(self, count: int) -> None:
        self._bytes += count
        if self._bytes > self._most:
            raise ConfigError(
                f"{self._where}: grows to more than {self._most} bytes, as an archive does that is meant to fill a disk"
            )
