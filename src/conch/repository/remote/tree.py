"""Trees of files that came at once, in an archive or an image: which models they are, and a note of what was found."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from conch.errors import ConfigError
from conch.repository.remote.cache import Cache
from conch.repository.remote.listing import Contents, RemoteFile, by_model

_CONFIG_FILE = "config.pbtxt"
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


def models_of(entries: Iterable[RemoteFile], stem: str) -> Contents:
    """Return the models of a tree: a repository, a folder with a repository in it, or one model, then named `stem`."""
    found = list(entries)
    if _is_model(found):
        return by_model(RemoteFile(f"{stem}/{one.path}", one.key, one.size) for one in found)
    models = by_model(found)
    tops = {one.path.partition("/")[0] for one in found}
    if len(models) == 1 and len(tops) == 1 and not _is_model(next(iter(models.values()))):
        return by_model(next(iter(models.values())))
    return models


def merged(layers: Iterable[Sequence[RemoteFile]], where: str, most: int = 200_000) -> list[RemoteFile]:
    """Lay the layers of an image over each other, lowest first: a later file wins, and a whiteout removes.

    Raises ConfigError if there are more than `most` entries.
    """
    tree: dict[str, RemoteFile] = {}
    for layer in layers:
        gone, emptied = set(), set()
        for entry in layer:
            folder, _, name = entry.path.rpartition("/")
            if name == _OPAQUE:
                emptied.add(folder)
            elif name.startswith(_WHITEOUT):
                gone.add(f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/"))
        if gone or emptied:
            tree = {path: entry for path, entry in tree.items() if not _is_gone(path, gone, emptied)}
        tree |= {entry.path: entry for entry in layer if not entry.path.rpartition("/")[2].startswith(_WHITEOUT)}
        if len(tree) > most:
            raise ConfigError(f"{where}: more than {most} files")
    return list(tree.values())


def complete(cache: Cache, contents: Contents) -> bool:
    """Whether all of these models is in the cache."""
    return all(one.is_folder or cache.has(one.key) for entries in contents.values() for one in entries)


def read_index(cache: Cache, key: str) -> list[RemoteFile] | None:
    """Return what was found in an archive, None if that is not known. It may not be in the cache any more."""
    try:
        rows = json.loads(cache.index(key).read_text(encoding="utf-8"))
        return [RemoteFile(str(path), str(object_key), int(size)) for path, object_key, size in rows]
    except (OSError, ValueError, TypeError):
        return None


def write_index(cache: Cache, key: str, entries: Iterable[RemoteFile]) -> None:
    """Write down what was found in an archive, once all of it is in the cache. Raises Unavailable."""
    with cache.new_file() as (file, stream):
        rows = [[one.path, one.key, one.size] for one in entries]
        with cache.writing():
            stream.write(json.dumps(rows).encode())
            stream.flush()
        cache.commit(file, cache.index(key))


def _is_model(entries: Iterable[RemoteFile]) -> bool:
    """Whether a folder is a model: it has a configuration or a version in it."""
    tops: Mapping[str, None] = {Path(one.path).parts[0]: None for one in entries}
    return _CONFIG_FILE in tops or any(top.isdigit() for top in tops)


def _is_gone(path: str, gone: set[str], emptied: set[str]) -> bool:
    """Whether a path, or a folder above it, is removed."""
    if path in gone:
        return True
    while path:
        path = path.rpartition("/")[0]
        if path in gone or path in emptied:
            return True
    return False
