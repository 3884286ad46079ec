"""Trees of files from archives and images: find the models in them, merge image layers, and cache their listings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from conch.base.errors import ConfigError, NotFound
from conch.server.repository.remote.cache import Cache
from conch.server.repository.remote.listing import Contents, RemoteFile, by_model

_CONFIG_FILE = "config.pbtxt"
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_MODELS = "models/"  # where images of KServe and of many builds have their models


def models_of(entries: Iterable[RemoteFile], stem: str) -> Contents:
    """Return the models of a tree: a repository, a folder with a repository in it, or one model, then named `stem`."""
    files = list(entries)
    if _is_model(files):
        return by_model(RemoteFile(f"{stem}/{entry.path}", entry.key, entry.size) for entry in files)
    models = by_model(files)
    tops = {entry.path.partition("/")[0] for entry in files}
    if len(models) == 1 and len(tops) == 1 and not _is_model(next(iter(models.values()))):
        return by_model(next(iter(models.values())))
    return models


def models_of_image(entries: Iterable[RemoteFile], stem: str, where: str) -> Contents:
    """Return the models of an image: those below `/models` if it has that folder, else as `models_of`.

    Raises NotFound if there are none, ConfigError for a link or device among them that a model must not have.
    """
    files = list(entries)
    below = [replace(entry, path=entry.path.removeprefix(_MODELS)) for entry in files if entry.path.startswith(_MODELS)]
    others = [entry for entry in files if entry.path.partition("/")[0] != _MODELS[:-1]]
    if below and not (_is_model(below) and any(_is_model(model) for model in by_model(others).values())):
        files = below
    for entry in files:
        if entry.refused:
            raise ConfigError(f"{where}: {entry.refused}")
    models = models_of(files, stem)
    if not any(map(_is_model, models.values())):
        tops = sorted({entry.path.partition("/")[0] for entry in files})
        raise NotFound(
            f"{where} contains no models: expected MODEL/config.pbtxt or MODEL/1/… at the top or below /models; found "
            f"{', '.join(tops[:10]) or 'nothing'}"
        )
    return models


def merged(layers: Iterable[Sequence[RemoteFile]], where: str, max_entries: int = 200_000) -> list[RemoteFile]:
    """Merge the layers of an image, lowest first: a later file overrides, a whiteout file removes.

    Raises ConfigError for more than `max_entries` entries.
    """
    tree: dict[str, RemoteFile] = {}
    for layer in layers:
        removed, emptied = set(), set()
        for entry in layer:
            folder, _, name = entry.path.rpartition("/")
            if name == _OPAQUE:
                emptied.add(folder)
            elif name.startswith(_WHITEOUT):
                removed.add(f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/"))
        if removed or emptied:
            tree = {path: entry for path, entry in tree.items() if not _is_removed(path, removed, emptied)}
        tree |= {entry.path: entry for entry in layer if not entry.path.rpartition("/")[2].startswith(_WHITEOUT)}
        if len(tree) > max_entries:
            raise ConfigError(f"{where}: more than {max_entries} files")
    return list(tree.values())


def complete(cache: Cache, contents: Contents) -> bool:
    """Whether all files of these models are in the cache."""
    return all(entry.is_folder or cache.has(entry.key) for entries in contents.values() for entry in entries)


def read_index(cache: Cache, key: str) -> list[RemoteFile] | None:
    """Return the cached listing of an archive, None if there is none. The files may no longer be in the cache."""
    try:
        return [RemoteFile.of_row(row) for row in cache.read_index(key)]
    except (TypeError, ValueError):
        return None


def write_index(cache: Cache, key: str, entries: Iterable[RemoteFile]) -> None:
    """Cache the listing of an archive whose files are all in the cache. Raises Unavailable."""
    cache.write_index(key, [entry.row for entry in entries])


def _is_model(entries: Iterable[RemoteFile]) -> bool:
    """Whether a folder is a model: it contains a configuration or a version."""
    tops: Mapping[str, None] = {Path(entry.path).parts[0]: None for entry in entries}
    return _CONFIG_FILE in tops or any(top.isdigit() for top in tops)


def _is_removed(path: str, removed: set[str], emptied: set[str]) -> bool:
    """Whether a path, or a folder above it, is removed."""
    if path in removed:
        return True
    while path:
        path = path.rpartition("/")[0]
        if path in removed or path in emptied:
            return True
    return False
