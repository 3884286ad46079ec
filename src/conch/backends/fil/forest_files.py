"""The forms in which forests are stored, and what a file says of itself before a library sees it.

Only what costs nothing to tell: by which bytes a form begins, and whether a text is as long as it says.
"""

import re
from pathlib import Path

from conch.backends.base import ModelSource
from conch.backends.model_file import model_path
from conch.errors import ConfigError, ModelLoadError

# The file that Triton looks for, by `model_type`.
FILENAMES = {
    "xgboost": "xgboost.model",
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}

_BEGINNINGS = {
    "xgboost": re.compile(rb"binf"),
    "xgboost_json": re.compile(rb'\s*\{\s*"'),
    "xgboost_ubj": re.compile(rb"\{[iUIlL$#]"),
    "lightgbm": re.compile(rb"tree\r?\n"),
    # The version of treelite, three numbers of four bytes.
    "treelite_checkpoint": re.compile(rb"[\x01-\x0f]\0\0\0.\0\0\0.\0\0\0", re.DOTALL),
}
# XGBoost's old form began with the first of its numbers before it had a mark.
_WITHOUT_MARK = "xgboost"
_LONGEST_BEGINNING = 64
_PICKLES = (".pkl", ".pickle", ".joblib")


def locate_forest(source: ModelSource, whose: str) -> tuple[Path, str]:
    """Return the path of a model's file and its `model_type`; `whose` is named in errors.

    Raises ConfigError for an unknown model type, ModelLoadError for a file that is missing or a pickle.
    """
    kind = source.config.parameters.get("model_type") or _kind_there(source)
    if kind not in FILENAMES:
        known = ", ".join(FILENAMES)
        raise ConfigError(
            f"parameter 'model_type' of model '{source.config.name}' must be one of {known}; got '{kind}'"
        )
    filename = FILENAMES[kind]
    _refuse_pickles(source, source.config.default_model_filename or filename)
    return model_path(source, filename, whose), kind


def _kind_there(source: ModelSource) -> str:
    """Return the model type whose file is in the version's folder; Triton's default if there is none."""
    folder = source.version_directory
    return next((kind for kind, filename in FILENAMES.items() if (folder / filename).exists()), "xgboost")


def _refuse_pickles(source: ModelSource, filename: str) -> None:
    """Raise ModelLoadError for a model that is a pickle: to load one is to run whatever code is in it."""
    folder = source.version_directory
    names = (
        [] if (folder / filename).exists() or not folder.is_dir() else sorted(each.name for each in folder.iterdir())
    )
    for name in (filename, *names):
        if name.endswith(_PICKLES):
            raise ModelLoadError(
                f"'{folder / name}' is a pickle, which could run any code when it is loaded, and is never read; where "
                "it was trained, save it by treelite.sklearn.import_model(model).serialize('checkpoint.tl') "
                "(model_type treelite_checkpoint), by XGBoost's or LightGBM's save_model, or as ONNX by skl2onnx"
            )


def check_form(path: Path, kind: str) -> None:
    """Raise ValueError if a file cannot be of this kind, or lacks trees that it tells of."""
    with path.open("rb") as stream:
        head = stream.read(_LONGEST_BEGINNING)
    if not head:
        raise ValueError("the file is empty")
    likely = next((each for each, beginning in _BEGINNINGS.items() if beginning.match(head)), "")
    if likely not in (kind, ""):
        raise ValueError(f"the file begins as one of model_type '{likely}' does")
    if not likely and kind != _WITHOUT_MARK:
        raise ValueError("the file does not begin as one of this model_type does")
    if kind == "lightgbm":
        _check_length(path)


def _check_length(path: Path) -> None:
    """Hold LightGBM's text against the sizes of its trees, where it tells them: what is missing would not be missed."""
    begin, sizes = 0, b""
    with path.open("rb") as stream:
        for line in stream:
            if line.startswith(b"Tree="):
                break
            if line.startswith(b"tree_sizes="):
                sizes = line.partition(b"=")[2]
            begin += len(line)
    missing = sum(map(int, sizes.split())) - (path.stat().st_size - begin)
    if missing > 0:
        raise ValueError(f"the file was cut short: at least {missing} bytes of its trees are missing")
