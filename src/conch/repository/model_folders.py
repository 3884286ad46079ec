"""Which folders of a repository are models, by their names; and whether a path is a model rather than a repository."""

import os
from pathlib import Path

# Made by file systems, interpreters and storage devices beside the models.
_NOT_MODELS = frozenset(
    {"lost+found", "__pycache__", "__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information"}
)


def is_model_name(name: str) -> bool:
    """Whether a folder of this name is a model. Hidden ones are an editor's, or those behind a mounted ConfigMap.

    A name that is not UTF-8 cannot be sent to a client.
    """
    return not name.startswith(".") and name not in _NOT_MODELS and _is_utf8(name)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_model(path: Path) -> bool:
    """Whether a path is a model's folder: all folders in it are versions, and one, or the path, has a model's file.

    What cannot be read is not: an unreadable folder is its model's failure, not the repository's.
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
