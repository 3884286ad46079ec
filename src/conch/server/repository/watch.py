"""Detect changes of a model's files by their names, sizes and modification times."""

import errno
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

# (path relative to the model's directory, modification time in ns, size in bytes), sorted. Directories count by name.
Fingerprint: TypeAlias = tuple[tuple[str, int, int], ...]
# The key of a model: its name, or a tuple with it.
Model = TypeVar("Model", bound=str | tuple[str, ...])

_log = logging.getLogger(__name__)

# Of one model, which are compared. A Python environment has some ten thousand.
MAX_ENTRIES = 100_000

# Temporary errors: no descriptor or memory left, a network file system that does not answer.
_TEMPORARY_ERRORS = {
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
}

# Files that interpreters and editors write: bytecode beside a model must not reload it.
_IGNORED = re.compile(r"__pycache__$|.*\.py[co]$|\..*\.sw.$|.*~$|\.#.*|#.*#$|4913$|\.DS_Store$|\.nfs.*")

_SOURCES = (".pbtxt", ".py", ".onnx")


def fingerprint(directory: Path) -> Fingerprint:
    """Return the fingerprint of everything below a directory, () if it does not exist.

    Symbolic links are followed, because mounted configuration consists of them. Links can multiply a folder without
    end or lead to all of a disk, so at most `MAX_ENTRIES` entries are read, in the order of their names. Files that
    vanish during the scan are left out. Raises OSError for a temporary error, which must not look like a change.
    """
    entries: list[tuple[str, int, int]] = []
    _collect(directory, "", frozenset(), entries)
    if len(entries) >= MAX_ENTRIES:
        _log.warning(
            "'%s' has more than %d files and folders; changes of others are not detected", *(directory, MAX_ENTRIES)
        )
    return tuple(sorted(entries))


def stamps_of(paths: Iterable[str]) -> Fingerprint:
    """Return the fingerprint of single files, whose paths stand for names; a file that is missing has zeros."""
    stamps: list[tuple[str, int, int]] = []
    for path in sorted(paths):
        try:
            status = Path(path).stat()
        except FileNotFoundError:
            stamps.append((path, 0, 0))
        else:
            stamps.append((path, status.st_mtime_ns, status.st_size))
    return tuple(stamps)


def _collect(
    directory: Path | str, prefix: str, above: frozenset[tuple[int, int]], entries: list[tuple[str, int, int]]
) -> None:
    try:
        status = Path(directory).stat()
        # A link to a folder above would recurse forever.
        if (identity := (status.st_dev, status.st_ino)) in above:
            return
        with os.scandir(directory) as listing:
            children = sorted(islice(listing, MAX_ENTRIES), key=attrgetter("name"))
    except OSError as error:
        _check_absent(error)
        return
    for child in children:
        if len(entries) >= MAX_ENTRIES:
            return
        if _IGNORED.match(child.name):
            continue
        path = prefix + child.name
        try:
            status = child.stat()
            is_directory = child.is_dir()
        except OSError as error:
            _check_absent(error)
            continue
        if is_directory:
            entries.append((path + "/", 0, 0))
            _collect(child.path, path + "/", above | {identity}, entries)
        else:
            entries.append((path, status.st_mtime_ns, status.st_size))


def sources(stamps: Fingerprint) -> Fingerprint:
    """Return the entries of source files, which a model does not write itself, unlike caches and logs."""
    return tuple(entry for entry in stamps if entry[0].endswith(_SOURCES))


def settled(
    seen: Mapping[Model, Fingerprint], earlier: Mapping[Model, Fingerprint], later: Mapping[Model, Fingerprint]
) -> dict[Model, Fingerprint]:
    """Return the state of a repository from two consecutive snapshots.

    A model that differs between the two is still being written: its `seen` state counts until two snapshots agree.
    """
    unstable = {name for name in earlier.keys() | later.keys() if earlier.get(name) != later.get(name)}
    stable = {name: stamps for name, stamps in later.items() if name not in unstable}
    return stable | {name: stamps for name, stamps in seen.items() if name in unstable}


def _check_absent(error: OSError) -> None:
    """Raise the error again if it is temporary and does not mean that the file is absent."""
    if error.errno in _TEMPORARY_ERRORS:
        raise error


@dataclass(frozen=True, slots=True)
class Changes(Generic[Model]):
    """Models that were added, changed or removed between two snapshots, sorted."""

    added: tuple[Model, ...]
    changed: tuple[Model, ...]
    removed: tuple[Model, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


def changes(before: Mapping[Model, Fingerprint], now: Mapping[Model, Fingerprint]) -> Changes[Model]:
    """Compare two snapshots of a repository: model → fingerprint."""
    return Changes(
        added=tuple(sorted(now.keys() - before.keys())),
        changed=tuple(sorted(name for name in now.keys() & before.keys() if now[name] != before[name])),
        removed=tuple(sorted(before.keys() - now.keys())),
    )
