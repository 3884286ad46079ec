"""The folder of a model: its name, its version folders, its labels, and hints for what it has instead."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any

from conch.base.control_characters import is_utf8
from conch.base.errors import ModelLoadError
from conch.base.files.confined import read_confined
from conch.domain.model_config import ModelConfig, VersionPolicyKind

# Folders that file systems, interpreters and storage devices create.
_NOT_MODELS = frozenset(
    {"lost+found", "__pycache__", "__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information"}
)
# Triton's versions are 64-bit integers.
_MAX_DIGITS = len(str(2**63 - 1)) - 1
_MAX_NAMES = 10
_VERSION_LIKE = re.compile(r"(?:v|ver|version)?[-_. ]?0*([1-9]\d*)$", re.IGNORECASE)
_TO_ONNX = "convert the model to ONNX (tf2onnx), or call its library in a 'python' model"
_TO_TORCHSCRIPT = "save the model with torch.jit.save as model.pt or with torch.export.save as model.pt2"
# Ending of a file's name → what to do with its format. The first match counts.
_FORMATS = {
    "openvino_model.xml": 'write backend: "openvino_genai" into config.pbtxt if it is a language model',
    ".gguf": 'write backend: "openvino_genai" into config.pbtxt',
    ".safetensors": 'write backend: "vllm" into config.pbtxt, or add the model with `conch repo add`',
    "xgboost.json": 'write backend: "fil" into config.pbtxt',
    "checkpoint.tl": 'write backend: "fil" into config.pbtxt',
    "saved_model.pb": 'write backend: "openvino" and default_model_filename: the folder into config.pbtxt',
    ".keras": _TO_ONNX,
    ".h5": _TO_ONNX,
    ".tflite": _TO_ONNX,
    ".pb": _TO_ONNX,
    ".pth": _TO_TORCHSCRIPT,
    ".ckpt": _TO_TORCHSCRIPT,
    ".pkl": "unpickle it in a 'python' model, or convert it to ONNX (skl2onnx)",
    ".joblib": "unpickle it in a 'python' model, or convert it to ONNX (skl2onnx)",
}
_SERVED = (".onnx", ".xml", ".pt", ".pt2", ".plan", ".py")
# Of all label files of a model together; the names of 20,000 classes take half a megabyte.
MAX_LABEL_BYTES = 16 << 20
_MAX_BYTES = 64 << 20


def is_model_name(name: str) -> bool:
    """Whether a folder of this name is a model.

    Hidden folders belong to editors or to a mounted ConfigMap. A name that is not UTF-8 cannot be sent to a client.
    """
    return not name.startswith(".") and name not in _NOT_MODELS and is_utf8(name)


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


def versions_on_disk(directory: Path) -> tuple[int, ...]:
    """Return the numbers of the version directories, ascending. Other names and leading zeros are ignored."""
    try:
        with os.scandir(directory) as entries:
            return tuple(sorted(int(entry.name) for entry in entries if _is_version(entry.name) and entry.is_dir()))
    except OSError:
        return ()


def version_files(directory: Path, version: int) -> dict[str, bool]:
    """Return the entries of a version directory: name → whether it is a directory."""
    try:
        with os.scandir(directory / str(version)) as entries:
            return {entry.name: entry.is_dir() for entry in entries}
    except OSError:
        return {}


def chosen_versions(config: ModelConfig, versions: Sequence[int], directory: Path | None = None) -> tuple[int, ...]:
    """Return the versions on disk that the version policy selects, ascending.

    Versions that the policy names and that do not exist are left out. Raises ModelLoadError if none remains; with the
    model's `directory`, the error says what it contains instead of versions.
    """
    policy = config.version_policy
    present = sorted(set(versions))
    if policy.kind is VersionPolicyKind.ALL:
        chosen = present
    elif policy.kind is VersionPolicyKind.SPECIFIC:
        chosen = [version for version in present if version in policy.versions]
    else:
        chosen = present[max(len(present) - policy.num_versions, 0) :]
    if not chosen:
        on_disk = ", ".join(map(str, present)) or "none"
        raise ModelLoadError(
            f"at least one version must be available under the version policy of model '{config.name}' "
            f"(policy: {policy.kind.value}, versions on disk: {on_disk})"
            + (f"; {missing_version(directory)}" if directory is not None and not present else "")
        )
    return tuple(chosen)


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and name[0] != "0" and len(name) <= _MAX_DIGITS


def unknown_format(names: Iterable[str]) -> str:
    """Return a sentence that says how to serve the files of a version folder, "" if no hint applies."""
    present = sorted(names)
    for ending, remedy in _FORMATS.items():
        if file := next((name for name in present if name.lower().endswith(ending)), ""):
            return f"For '{file}', {remedy}."
    served = [name for name in present if PurePath(name).suffix in _SERVED]
    if len(served) == 1:
        return f"Rename '{served[0]}' to 'model{PurePath(served[0]).suffix}'."
    return ""


def missing_version(directory: Path) -> str:
    """Return a sentence about what a model's folder contains instead of version folders. Reads the folder."""
    try:
        with os.scandir(directory) as entries:
            entries_by_name = {entry.name: entry.is_dir() for entry in entries if not entry.name.startswith(".")}
    except OSError:
        entries_by_name = {}
    for name, is_folder in sorted(entries_by_name.items()):
        if is_folder and (number := _VERSION_LIKE.match(name)):
            return f"the name of the folder '{name}' is not just a number: rename it to '{number[1]}'"
    for name, is_folder in sorted(entries_by_name.items()):
        if name.startswith("model.") or (not is_folder and name.endswith((".onnx", ".py", ".pt", ".plan", ".xml"))):
            return f"'{name}' must be in a version folder: move it to '1/{name}'"
    names = ", ".join(f"'{name}'" for name in sorted(entries_by_name)[:_MAX_NAMES]) or "nothing"
    more = ", …" if len(entries_by_name) > _MAX_NAMES else ""
    return f"the model's files must be in a folder named after the version, such as '1'; found {names}{more}"


def read_labels(config: ModelConfig, directory: Path) -> dict[str, tuple[str, ...]]:
    """Return the labels by output and class index, for outputs that have any. `directory` is the model's folder.

    Raises ModelLoadError if a file is missing, unreadable, too large or outside the model's directory.
    """
    by_file: dict[str, tuple[str, ...]] = {}
    remaining_bytes = MAX_LABEL_BYTES
    for output in config.outputs:
        filename = output.label_filename
        if filename and filename not in by_file:
            text = _read(directory, filename, f"output '{output.name}' of model '{config.name}'", remaining_bytes)
            remaining_bytes -= len(text)
            by_file[filename] = tuple(text.split("\n")[: -1 if text.endswith("\n") else None]) if text else ()
    return {output.name: by_file[output.label_filename] for output in config.outputs if output.label_filename}


def _read(directory: Path, filename: str, owner: str, max_bytes: int) -> str:
    try:
        data = read_confined(directory, filename, "label_filename", owner, at_most=max_bytes, max_bytes=max_bytes)
    except OSError as error:
        raise ModelLoadError(
            f"failed to open text file for read {directory / filename}: {error.strerror} (label_filename of {owner})"
        ) from error
    # Labels are bytes on the wire: surrogateescape keeps bytes that are not UTF-8.
    return data.decode("utf-8", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a file; empty for any other content, which loading the model reports."""
    try:
        if not path.is_file() or path.stat().st_size > _MAX_BYTES:  # opening a pipe would block
            return {}
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
