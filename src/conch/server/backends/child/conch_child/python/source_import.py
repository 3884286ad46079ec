"""Import a model's code from its sources as they are, not from bytecode that an earlier import has cached.

Python takes cached bytecode for that of a source of the same size and the same second of modification: a model that is
changed and loaded again within a second would silently be the former one. See
https://docs.python.org/3/reference/import.html#cached-bytecode-invalidation. Nothing is written to the folder, either.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import Any, Mapping, Set

# Environments inside a model's folder keep their bytecode, which takes long to make.
_LIBRARIES = "site-packages"
_folders: Set[Path] = set()


class _SourceLoader(SourceFileLoader):
    def path_stats(self, path: Any) -> Mapping[str, Any]:
        """Raise OSError, after which `get_code` neither reads nor writes bytecode."""
        raise OSError("the bytecode of '{}' is not cached".format(path))


def add_source_folder(folder: str) -> None:
    """Import the modules of a folder, and of packages in it, from their sources in this process from now on."""
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
    _folders.add(Path(folder))
    for path in [path for path in sys.path_importer_cache if _has_sources(path)]:
        del sys.path_importer_cache[path]


def import_source(name: str, path: str) -> types.ModuleType:
    """Import a Python file from its source as module `name`. Raises what the import raises."""
    spec = importlib.util.spec_from_file_location(name, path, loader=_SourceLoader(name, path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before it is executed, for pickle and inspect, which look its classes up there.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _has_sources(path: str) -> bool:
    """Whether a path is in a folder of sources, and not in an environment inside of it."""
    place, environment = Path(path), Path(sys.prefix)
    within = {place, *place.parents}
    return _LIBRARIES not in place.parts and any(
        folder in within and not (environment in within and folder in environment.parents) for folder in _folders
    )


def _finder(path: str) -> FileFinder:
    """Return the finder of a folder. Raises ImportError for others, which leaves them to Python's."""
    if not _has_sources(path) or not Path(path).is_dir():
        raise ImportError("'{}' has no model".format(path))
    return FileFinder(
        path,
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (_SourceLoader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )
