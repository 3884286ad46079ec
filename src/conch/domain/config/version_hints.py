"""Hints for model folders in which no version or no known format was found."""

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePath

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
    "saved_model.pb": _TO_ONNX,
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


def unknown_format(names: Iterable[str]) -> str:
    """Return a sentence that says how to serve the files of a version folder, "" if no hint applies."""
    present = sorted(names)
    for ending, remedy in _FORMATS.items():
        if found := next((name for name in present if name.lower().endswith(ending)), ""):
            return f"For '{found}', {remedy}."
    served = [name for name in present if PurePath(name).suffix in _SERVED]
    if len(served) == 1:
        return f"Rename '{served[0]}' to 'model{PurePath(served[0]).suffix}'."
    return ""


def missing_version(directory: Path) -> str:
    """Return a sentence about what a model's folder contains instead of version folders. Reads the folder."""
    try:
        with os.scandir(directory) as entries:
            found = {entry.name: entry.is_dir() for entry in entries if not entry.name.startswith(".")}
    except OSError:
        found = {}
    for name, is_folder in sorted(found.items()):
        if is_folder and (number := _VERSION_LIKE.match(name)):
            return f"the name of the folder '{name}' is not just a number: rename it to '{number[1]}'"
    for name, is_folder in sorted(found.items()):
        if name.startswith("model.") or (not is_folder and name.endswith((".onnx", ".py", ".pt", ".plan", ".xml"))):
            return f"'{name}' must be in a version folder: move it to '1/{name}'"
    names = ", ".join(f"'{name}'" for name in sorted(found)[:_MAX_NAMES]) or "nothing"
    more = ", …" if len(found) > _MAX_NAMES else ""
    return f"the model's files must be in a folder named after the version, such as '1'; found {names}{more}"
