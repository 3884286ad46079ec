"""Check that a model file exists, can be read, and is not empty or a Git LFS pointer."""

import os
from collections.abc import Iterator
from pathlib import Path

from conch.check.finding import Finding, Place
from conch.check.model import CheckedModel

_LFS_HEAD = b"version https://git-lfs.github.com/spec/"


def check_readable(model: CheckedModel, path: Path) -> Iterator[Finding]:
    """Check that a file exists, can be read, and is not empty or a Git LFS pointer."""
    inner = path / "model.onnx" if path.is_dir() and path.suffix == ".onnx" else path
    if inner.is_dir():
        return
    if inner.exists() and not inner.is_file():
        yield Finding("file-unreadable", Place(inner), f"{inner.name} is not a regular file")
        return
    try:
        with inner.open("rb") as file:
            head = file.read(len(_LFS_HEAD))
    except FileNotFoundError:
        yield _missing(model, inner)
        return
    except OSError as error:
        yield Finding("file-unreadable", Place(inner), f"{inner.name} cannot be read: {error.strerror}")
        return
    if not head:
        yield Finding("file-empty", Place(inner), f"{inner.name} of model '{model.name}' is empty")
    elif head == _LFS_HEAD:
        yield Finding("file-lfs-pointer", Place(inner), f"{inner.name} of model '{model.name}' is a Git LFS pointer")


def _missing(model: CheckedModel, path: Path) -> Finding:
    try:
        present = sorted(entry.name for entry in os.scandir(path.parent) if not entry.name.startswith("."))
    except OSError:
        present = []
    contents = ", ".join(present) or "nothing"
    message = f"model '{model.name}' has no {path.parent.name}/{path.name}; the folder contains {contents}"
    alike = [name for name in present if Path(name).suffix == path.suffix]
    cure = ""
    if len(alike) == 1:
        cure = f'Rename {alike[0]} to {path.name}, or write `default_model_filename: "{alike[0]}"` into config.pbtxt.'
    return Finding("file-missing", Place(path.parent), message, cure)
