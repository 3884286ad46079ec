"""Tell models from other folders of a repository by their names, and a model's folder from a repository."""

import os
from pathlib import Path

# Folders that file systems, interpreters and storage devices create.
_NOT_MODELS = frozenset(
    {"lost+found", "__pycache__", "__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information"}
)


def is_model_name(name: str) -> bool:
    """Whether a folder of this name is a model.

    Hidden folders belong to editors or to a mounted ConfigMap. A name that is not UTF-8 cannot be sent to a client.
    """
    return not name.startswith(".") and name not in _NOT_MODELS and is_utf8(name)


def is_utf8(name: str) -> bool:
    """Whether the name of a file or folder can be encoded."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_model(path: Path) -> bool:
    """Whether a path is a model's folder: all folders in it are versions, and one, or the path, has a model's file.

    False for a folder that cannot be read: that is an error of the model, not of the repository.
    """
    try:
        with os.scandir(path) as entries:
            folders = [entry.name for entry in entries if entry.is_dir() and is_model_name(entry.name)]
        if not all(name.isdecimal() for name in folders):
            return False
        if (path / "config.pbtxt").is_file():
            return True
        return any(not (path / name / "config.pbtxt").exists() and _has_model_file(path / name) for name in folders)
    except OSError:
        return False


def _has_model_file(version: Path) -> bool:
    with os.scandir(version) as entries:
        return any(entry.name.startswith("model.") for entry in entries)
