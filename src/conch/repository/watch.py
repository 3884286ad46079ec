"""Whether a model's files have changed: their names, sizes and modification times, and several such looks compared."""

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

# (path relative to the model's directory, modification time in ns, size in bytes), sorted. Directories count by name.
Fingerprint: TypeAlias = tuple[tuple[str, int, int], ...]
# What stands for a model: its name, or a tuple with it.
Model = TypeVar("Model", bound=str | tuple[str, ...])

# No descriptor or memory left, a network file system that is away.
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN}

# Written by an interpreter or an editor that looks at the model, not by somebody who changes it: a Python model that
# is loaded leaves its bytecode beside it, and would be reloaded for ever.
_BYSTANDERS = re.compile(r"__pycache__$|.*\.py[co]$|\..*\.sw.$|.*~$|\.#.*|#.*#$|4913$|\.DS_Store$|\.nfs.*")

_SOURCES = (".pbtxt", ".py", ".onnx")


def fingerprint(directory: Path) -> Fingerprint:
    """Return the fingerprint of everything below a directory, () if it is not there.

    Symbolic links are followed (mounted configuration is made of them). What vanishes meanwhile is left out.
    Raises OSError if it cannot be told what is there, which must not look like a change.
    """
    entries: list[tuple[str, int, int]] = []
    _collect(directory, "", frozenset(), entries)
    return tuple(sorted(entries))


def _collect(
    directory: Path | str, prefix: str, above: frozenset[tuple[int, int]], entries: list[tuple[str, int, int]]
) -> None:
    try:
        status = Path(directory).stat()
        # A link that leads back up would never end.
        if (identity := (status.st_dev, status.st_ino)) in above:
            return
        with os.scandir(directory) as listing:
            children = list(listing)
    except OSError as error:
        _check_absent(error)
        return
    for child in children:
        if _BYSTANDERS.match(child.name):
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
    """Return what a model is made from and does not write itself, unlike caches and logs."""
    return tuple(entry for entry in stamps if entry[0].endswith(_SOURCES))


def settled(
    seen: Mapping[Model, Fingerprint], earlier: Mapping[Model, Fingerprint], later: Mapping[Model, Fingerprint]
) -> dict[Model, Fingerprint]:
    """Return what to take for the state of a repository after two looks at it, some time apart.

    A model that changed in between is being written: it counts as it was `seen` before, until it keeps still.
    """
    moving = {name for name in earlier.keys() | later.keys() if earlier.get(name) != later.get(name)}
    still = {name: stamps for name, stamps in later.items() if name not in moving}
    return still | {name: stamps for name, stamps in seen.items() if name in moving}


def _check_absent(error: OSError) -> None:
    """Raise the error again if it says nothing about the file but that it cannot be looked at now."""
    if error.errno in _PASSING:
        raise error


@dataclass(frozen=True, slots=True)
class Changes(Generic[Model]):
    """What became of the models of a repository between two looks at it, sorted."""

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
