"""File formats of forests: locate the file, and check its first bytes and length before a library reads it."""

import re
from pathlib import Path

from conch.base.errors import ConfigError, ModelLoadError
from conch.server.backends.base import ModelSource
from conch.server.backends.model_file import model_path

# The file that Triton looks for, by `model_type`.
FILENAMES = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}

_MAGIC = {
    "xgboost": re.compile(rb"binf"),
    "xgboost_json": re.compile(rb'\s*\{.*"learner"', re.DOTALL),
    "xgboost_ubj": re.compile(rb"\{[iUIlL$#]"),
    "lightgbm": re.compile(rb"tree\r?\n"),
    # The version of treelite, three numbers of four bytes.
    "treelite_checkpoint": re.compile(rb"[\x01-\x0f]\0\0\0.\0\0\0.\0\0\0", re.DOTALL),
}
# Files of XGBoost's old binary format need not begin with its magic number.
_WITHOUT_MAGIC = "xgboost"
_MAX_MAGIC_BYTES = 256
_MAX_LINE_BYTES = 16 << 20  # the sizes of 2 million trees
_PICKLES = (".pkl", ".pickle", ".joblib")


def locate_forest(source: ModelSource, instance: str) -> tuple[Path, str]:
    """Return the path of a model's file and its `model_type`. Errors name the instance.

    Raises ConfigError for an unknown model type, ModelLoadError for a file that is missing or a pickle.
    """
    kind = source.config.parameters.get("model_type") or _detect_kind(source)
    if kind not in FILENAMES:
        known = ", ".join(FILENAMES)
        raise ConfigError(
            f"parameter 'model_type' of model '{source.config.name}' must be one of {known}; got '{kind}'"
        )
    filename = FILENAMES[kind]
    _refuse_pickles(source, source.config.default_model_filename or filename)
    return model_path(source, filename, instance), kind


def _detect_kind(source: ModelSource) -> str:
    """Return the model type whose file is in the version's folder, else Triton's default."""
    folder = source.version_directory
    return next((kind for kind, filename in FILENAMES.items() if (folder / filename).exists()), "xgboost")


def _refuse_pickles(source: ModelSource, filename: str) -> None:
    """Raise ModelLoadError for a pickle, since loading one can run any code."""
    folder = source.version_directory
    names = (
        [] if (folder / filename).exists() or not folder.is_dir() else sorted(file.name for file in folder.iterdir())
    )
    for name in (filename, *names):
        if name.endswith(_PICKLES):
            raise ModelLoadError(
                f"'{folder / name}' is a pickle, which is not loaded because it can run any code; save the model by "
                "treelite.sklearn.import_model(model).serialize('checkpoint.tl') (model_type treelite_checkpoint), by "
                "XGBoost's or LightGBM's save_model, or as ONNX by skl2onnx"
            )


def detect_form(path: Path) -> str:
    """Return the `model_type` that the first bytes of a file show, "" for none. Raises OSError."""
    with path.open("rb") as stream:
        head = stream.read(_MAX_MAGIC_BYTES)
    return next((kind for kind, magic in _MAGIC.items() if magic.match(head)), "")


def check_form(path: Path, kind: str) -> None:
    """Raise ValueError if a file is not of this kind, or is truncated."""
    if not path.stat().st_size:
        raise ValueError("the file is empty")
    detected = detect_form(path)
    if detected not in (kind, ""):
        raise ValueError(f"the file has the format of model_type '{detected}'")
    if not detected and kind != _WITHOUT_MAGIC:
        raise ValueError("the file does not have the format of this model_type")
    if kind == "lightgbm":
        _check_length(path)


def _check_length(path: Path) -> None:
    """Raise ValueError if LightGBM's text is shorter than its `tree_sizes`, which LightGBM itself does not check."""
    begin, sizes = 0, b""
    with path.open("rb") as stream:
        while line := stream.readline(_MAX_LINE_BYTES):
            if line.startswith(b"Tree="):
                break
            if line.startswith(b"tree_sizes="):
                sizes = line.partition(b"=")[2]
            begin += len(line)
    missing = sum(map(int, sizes.split())) - (path.stat().st_size - begin)
    if missing > 0:
        raise ValueError(f"the file is truncated: at least {missing} bytes of its trees are missing")
