"""Unpack archives and image layers into objects of the cache.

Archives are untrusted. One with a path or link that leads out, a device, or an expansion above the limits is refused
as a whole.
"""

import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import sha256
from itertools import islice
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import IO, Self

from conch.base.archives import ArchiveBudget, ArchiveLimits, tar_members, zip_members
from conch.base.control_characters import has_control_characters
from conch.base.errors import ConfigError
from conch.server.repository.remote.cache import BLOCK_BYTES, Cache
from conch.server.repository.remote.listing import MAX_PATH_BYTES, RemoteFile, inside

_CHUNK_BYTES = 1024 * 1024
_COMMIT_THREADS = 8
_MAX_PENDING_COMMITS = 64  # each has an open file
MAX_LINK_CHAIN = 40  # Linux's own bound
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError)


class Unpacker:
    """Unpacks archives into a cache. `where` is for messages.

    With `defers`, a link that leads out or nowhere, a device, and a name with control characters do not refuse the
    archive but become entries that are `refused`: layers of images contain such files, outside of the models.
    """

    def __init__(self, cache: Cache, where: str, limits: ArchiveLimits | None = None, *, defers: bool = False) -> None:
        self._cache = cache
        self._where = where
        self._limits = limits or ArchiveLimits()
        self._defers = defers

    def unpack(self, file: Path, suffix: str) -> list[RemoteFile]:
        """Store the files of an archive in the cache, by the SHA-256 of their contents, and return its entries.

        A link is replaced by its target. Raises ConfigError for a damaged or unsafe archive, Unavailable if the cache
        cannot be written; nothing of the archive then remains in the cache.
        """
        stored: list[str] = []
        try:
            return self._unpacked(file, suffix, stored)
        except BaseException:
            self._cache.discard(stored)
            raise

    def _unpacked(self, file: Path, suffix: str, stored: list[str]) -> list[RemoteFile]:
        """Unpack an archive, and add the keys of new objects to `stored`. Raises as `unpack`."""
        files: dict[str, RemoteFile] = {}
        links: dict[str, str] = {}
        refused: dict[str, str] = {}
        budget = ArchiveBudget(self._limits, file.stat().st_size, self._where)
        members = (self._zip if suffix == ".zip" else self._tar)(file, links, refused, budget)
        try:
            with _Commits(self._cache, stored) as commits:
                for path, stream in members:
                    if stream is None:
                        files[path] = RemoteFile(path, "", 0)
                    else:
                        with stream:
                            files[path] = self._store(path, stream, budget, commits)
        except _BROKEN as error:
            raise ConfigError(f"{self._where}: the archive is truncated or damaged: {_message(error)}") from error
        except (OSError, RuntimeError, NotImplementedError, ValueError, OverflowError) as error:
            # gzip raises OSError for other formats, zipfile RuntimeError for encrypted members.
            raise ConfigError(f"{self._where}: the archive cannot be read: {_message(error)}") from error
        # Of two entries with the same path the later one counts, as in an extraction.
        entries = files | {entry.path: entry for entry in self._followed(links, files, refused, budget)}
        entries |= {path: RemoteFile(path, "", 0, refused=reason) for path, reason in refused.items()}
        self._check_folders(entries)
        return list(entries.values())

    def _tar(
        self, file: Path, links: dict[str, str], refused: dict[str, str], budget: ArchiveBudget
    ) -> Iterator[tuple[str, IO[bytes] | None]]:
        for member, contents in tar_members(file, self._where):
            budget.count()
            if (path := self._member_path(member.name, refused)) == ".":
                continue
            if member.isdir():
                yield path, None
            elif member.isreg():
                yield path, contents()
            elif member.issym():
                self._add_link(path, str(PurePosixPath(path).parent / member.linkname), links, refused)
            elif member.islnk():
                self._add_link(path, member.linkname, links, refused)
            else:
                self._refuse(path, f"'{path}' is a device or pipe, which no model needs", refused)

    def _zip(
        self, file: Path, links: dict[str, str], refused: dict[str, str], budget: ArchiveBudget
    ) -> Iterator[tuple[str, IO[bytes] | None]]:
        for member, contents in zip_members(file, self._where):
            budget.count()
            if (path := self._member_path(member.filename, refused)) == ".":
                continue
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                self._refuse(path, f"'{path}' is a device or pipe, which no model needs", refused)
            elif member.is_dir():
                yield path, None
            elif kind == stat.S_IFLNK:
                with contents() as stream:
                    target = os.fsdecode(stream.read(MAX_PATH_BYTES + 1))
                self._add_link(path, str(PurePosixPath(path).parent / target), links, refused)
            else:
                yield path, contents()

    def _member_path(self, name: str, refused: dict[str, str]) -> str:
        """Return the path of a member, "." for one without an entry."""
        if self._defers and has_control_characters(name):
            self._refuse(name, f"the path {name[:200]!a} contains control characters", refused)
            return "."
        return self._path(name)

    def _path(self, name: str) -> str:
        if PurePosixPath(name) == PurePosixPath():
            return "."
        return str(inside(name, self._where))

    def _add_link(self, path: str, target: str, links: dict[str, str], refused: dict[str, str]) -> None:
        """Add a link with its target, relative to the archive, or refuse it."""
        if len(target) > 2 * MAX_PATH_BYTES:
            self._refuse(path, f"the link '{path}' leads to a path of {len(target)} characters", refused)
            return
        resolved = normpath(target)
        if resolved.startswith(("/", "../")) or resolved in ("..", "."):
            self._refuse(path, f"the link '{path}' leads out of the repository", refused)
        else:
            links[path] = self._path(resolved)

    def _refuse(self, path: str, reason: str, refused: dict[str, str]) -> None:
        """Record why an entry cannot be used. Raises ConfigError, unless this is deferred."""
        if not self._defers:
            raise ConfigError(f"{self._where}: {reason}")
        refused[path] = reason

    def _store(self, path: str, stream: IO[bytes], budget: ArchiveBudget, commits: "_Commits") -> RemoteFile:
        digest, size = sha256(), 0
        self._cache.spend(BLOCK_BYTES, self._where)  # also of an empty file
        with ExitStack() as written:
            file, target = written.enter_context(self._cache.new_file())
            while chunk := stream.read(_CHUNK_BYTES):
                budget.spend(len(chunk))
                digest.update(chunk)
                size += len(chunk)
                self._cache.spend(len(chunk), f"{self._where}, file '{path}'")
                with self._cache.writing():
                    target.write(chunk)
            with self._cache.writing():
                target.flush()
            key = digest.hexdigest()
            if not self._cache.has(key):
                commits.add(file, key, written.pop_all())
        return RemoteFile(path, key, size)

    def _followed(
        self,
        links: Mapping[str, str],
        files: Mapping[str, RemoteFile],
        refused: dict[str, str],
        budget: ArchiveBudget,
    ) -> Iterator[RemoteFile]:
        paths = sorted(files)
        for path, first in links.items():
            target, seen = first, {path}
            while target in links and target not in seen:
                if len(seen) > MAX_LINK_CHAIN:
                    raise ConfigError(
                        f"{self._where}: the link '{path}' leads through a chain of more than {MAX_LINK_CHAIN} links"
                    )
                seen.add(target)
                target = links[target]
            below = [target] if target in files else []
            for known in islice(paths, bisect_left(paths, f"{target}/"), None):
                if not known.startswith(f"{target}/"):
                    break
                below.append(known)
            if not below:
                self._refuse(path, f"the link '{path}' leads to '{target}', which is not in the archive", refused)
            for known in below:
                budget.count()
                entry = files[known]
                yield RemoteFile(self._path(path + known[len(target) :]), entry.key, entry.size)

    def _check_folders(self, entries: Mapping[str, RemoteFile]) -> None:
        """Raise ConfigError if an entry lies below a file."""
        for path in entries:
            above = path.rpartition("/")[0]
            while above:
                if above in entries and entries[above].key:
                    raise ConfigError(f"{self._where}: '{above}' is both a file and a folder")
                above = above.rpartition("/")[0]


class _Commits:
    """Commits files in threads: their waits for the disk overlap, and a journal writes many of them at once.

    The keys of new objects are added to `stored`. At the end all are committed, or have failed.
    """

    def __init__(self, cache: Cache, stored: list[str]) -> None:
        self._cache = cache
        self._stored = stored
        self._pool = ThreadPoolExecutor(_COMMIT_THREADS, "conch-commit")
        self._pending = deque[Future[None]]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown()
        for commit in self._pending if kind is None else ():
            commit.result()

    def add(self, file: Path, key: str, written: ExitStack) -> None:
        """Commit a file, whose resources are in `written`. Raises what an earlier commit has raised."""
        self._stored.append(key)
        self._pending.append(self._pool.submit(self._commit, file, key, written))
        if len(self._pending) > _MAX_PENDING_COMMITS:
            self._pending.popleft().result()

    def _commit(self, file: Path, key: str, written: ExitStack) -> None:
        with written:
            self._cache.commit(file, self._cache.object(key))


def _message(error: BaseException) -> str:
    return ascii(str(error))[1:-1][:300]
