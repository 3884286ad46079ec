"""Find what to check below a path: the folders of models by repository, and the other files."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from conch.base.control_characters import is_utf8
from conch.check.finding import Finding, Place
from conch.domain.files.model_folder import is_model_name

_CONFIG_FILE = "config.pbtxt"
_MODEL_FILES = ("model.py", "model.onnx", "model.xml", "model.pt", "model.pt2", "model.plan", "model.json")
_COMMANDS = (".sh", ".bash", ".yaml", ".yml", ".tpl", ".md", ".tf", ".service", ".py", ".json")
_DOCKERFILES = ("Dockerfile", "Containerfile")
_NAMED_DOCKERFILES = (".dockerfile", ".containerfile")  # such as app.Dockerfile
_SKIPPED = ("node_modules",)  # in addition to the folders that the server ignores
_MODEL_DEPTH = 3  # of a file in a model's folder: `<model>/<version>/<folder>/<file>`


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a path: the folders of models by repository, and other files to check."""

    repositories: dict[Path, list[Path]]
    files: list[Path]
    unreadable: list[Finding]  # folders and names


def files_contents(paths: Iterable[Path]) -> Contents:
    """Return files, and the models that files in models' folders belong to."""
    models: dict[Path, None] = {}
    files: dict[Path, None] = {}
    for path in paths:
        above = path.absolute().parents[:_MODEL_DEPTH]
        model = next(
            (folder for folder in above if is_model(folder) and not any(map(is_model, _folders(folder)))), None
        )
        if model is None:
            files[path] = None
        else:
            models[_written(path, model)] = None
    repositories: dict[Path, list[Path]] = {}
    for folder in models:
        repositories.setdefault(folder.parent, []).append(folder)
    return Contents(repositories, list(files), [])


def _written(path: Path, model: Path) -> Path:
    """Return the folder of a model as the path of its file is written, relative or absolute."""
    return next((parent for parent in path.parents if parent.name and parent.absolute() == model), model)


def _folders(path: Path) -> list[Path]:
    try:
        return [child for child in path.iterdir() if child.is_dir()]
    except OSError:
        return []


def find_contents(path: Path) -> Contents:
    """Return what to check in a folder. Raises FileNotFoundError if it does not exist."""
    if not path.is_dir():
        problem = "is not a regular file" if path.exists() else "does not exist"
        raise FileNotFoundError(f"'{path}' {problem}")
    if is_model(path) and not any(is_model(child) for child in path.iterdir()):
        return Contents(
            {path.resolve().parent: [path.resolve()]} if path.name in ("", "..") else {path.parent: [path]}, [], []
        )
    unreadable: list[Finding] = []

    def note(error: OSError) -> None:
        message = f"the folder {error.filename} cannot be read: {error.strerror}"
        unreadable.append(Finding("file-unreadable", Place(Path(error.filename)), message))

    repositories: dict[Path, list[Path]] = {}
    files: list[Path] = []
    for folder, subfolders, names in os.walk(path, onerror=note):
        here = Path(folder)
        children = [here / name for name in sorted(subfolders) if _is_searched(here / name)]
        if any(map(is_model, children)):
            # For the server, every folder of a repository is a model.
            repositories[here] = [here / name for name in sorted(subfolders) if is_model_name(name)]
            children = []
        subfolders[:] = [child.name for child in children]
        checked = [name for name in sorted(names) if _is_checked(name)]
        files += [here / name for name in checked if is_utf8(name)]
        foreign = (name for name in checked if not is_utf8(name))  # no format can show them
        message = "the name of a file is not UTF-8: {!r}"
        unreadable += [
            Finding("file-unchecked", Place(here), message.format(os.fsencode(name)), "Rename the file.")
            for name in foreign
        ]
    return Contents(repositories, files, unreadable)


def is_model(path: Path) -> bool:
    """Whether a folder is a model's: it has a configuration, or a version with a model file."""
    if not path.is_dir() or path.name.startswith("."):
        return False
    try:
        if (path / _CONFIG_FILE).exists():
            return True
        versions = [child for child in path.iterdir() if child.is_dir() and child.name.isdecimal()]
        return any((version / name).exists() for version in versions for name in _MODEL_FILES)
    except OSError:
        return False  # `os.walk` reports an unreadable folder


def _is_searched(path: Path) -> bool:
    if not is_model_name(path.name) or path.name in _SKIPPED:
        return False
    try:
        return not (path / "pyvenv.cfg").exists()
    except OSError:
        return True  # `os.walk` reports an unreadable folder


def _is_checked(name: str) -> bool:
    checked = name.endswith(_COMMANDS) or name.startswith(_DOCKERFILES) or name.lower().endswith(_NAMED_DOCKERFILES)
    return checked and not name.startswith(".")
