"""Find the files of a model by their names, in a folder or a listing of the Hub."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath

from conch.base.errors import InvalidRequest
from conch.domain.llm.text_model import FILES as TEXT_FILES

# Endings of models in a single file, in order of preference.
SINGLE_FILES = (".gguf", ".onnx", ".xml", ".pt", ".pt2")
# Forests, whose other endings are those of many files, and pickles of scikit-learn and others.
FOREST_ENDINGS = (".bst", ".ubj", ".tl")
FOREST_NAMES = ("model.json", "xgboost.json", "xgboost.model", "model.txt")
PICKLES = (".joblib", ".pkl", ".pickle")
# Endings of configurations, tokenizers and templates of language models.
_COMPANIONS = (".json", ".txt", ".model", ".jinja", ".tiktoken")
# Generic file names, for which the name of the folder is used.
_GENERIC_NAMES = ("model", "openvino_model", "pytorch_model")
SAVED_MODEL_FILE = "saved_model.pb"
# Folders of a checkpoint for models in these formats, whose tokenizer is in the folder above.
TEXT_FOLDERS = ("onnx", "openvino")
_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf")


class Kind(Enum):
    """The kind of model in a folder."""

    IR_FOLDER = "a language model in OpenVINO's IR"
    CHECKPOINT = "a checkpoint"
    SAVED_MODEL = "a SavedModel of TensorFlow"
    FILE = "a model in one file, the first of those found"


@dataclass(frozen=True, slots=True)
class DetectedModel:
    """The kind of a model, and the names of its files."""

    kind: Kind
    names: tuple[str, ...]


def is_model_folder(path: Path) -> bool:
    """Whether this is a model's folder of a repository, with a configuration or version folders."""
    return path.is_dir() and any(
        entry.name == "config.pbtxt" or (entry.is_dir() and entry.name.isdecimal()) for entry in path.iterdir()
    )


def name_of(path: Path) -> str:
    """Return the name of a file or folder, or of the nearest parent folder if that name is generic."""
    path = path.absolute()
    names = [path.name if path.is_dir() else path.stem, *(folder.name for folder in path.parents)]
    name = next((file for file in names if file not in _GENERIC_NAMES and not file.isdecimal()), "")
    return re.sub(r"\s+", "_", name)


def is_forest(name: str) -> bool:
    """Whether a file of this name can be a forest of XGBoost, LightGBM or treelite."""
    return name.endswith(FOREST_ENDINGS) or name in FOREST_NAMES


def find_model(names: Sequence[str], where: str) -> DetectedModel:
    """Return the model in a folder with these files. Raises InvalidRequest if there is none, or more than one."""
    if "openvino_model.xml" in names and "openvino_tokenizer.xml" in names:
        _require(names, ("openvino_model.bin", "openvino_tokenizer.bin", "openvino_detokenizer.xml"), where)
        return DetectedModel(
            Kind.IR_FOLDER, _chosen(names, lambda name: name.endswith((".xml", ".bin")) and "openvino" in name)
        )
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        return DetectedModel(Kind.CHECKPOINT, _chosen(names, lambda name: name.endswith((".safetensors", ".py"))))
    if SAVED_MODEL_FILE in names:
        inside = ("variables/", "assets/")
        return DetectedModel(
            Kind.SAVED_MODEL, tuple(name for name in names if "/" not in name or name.startswith(inside))
        )
    for is_one in _SINGLE:
        matches = [name for name in names if is_one(name)]
        if len(matches) > 1:
            shown = ", ".join(matches[:8]) + (" …" if len(matches) > 8 else "")
            raise InvalidRequest(f"{where} contains several models; choose one: {shown}")
        if matches:
            return find_file(names, matches[0], where)
    present = ", ".join(names[:8]) or "nothing"
    single = ", ".join((*SINGLE_FILES, *FOREST_ENDINGS, *FOREST_NAMES))
    raise InvalidRequest(
        f"{where} contains no model: expected openvino_model.xml with openvino_tokenizer.xml, config.json with "
        f".safetensors files, {SAVED_MODEL_FILE}, or one of {single}; found {present}"
    )


def _ends(*endings: str) -> Callable[[str], bool]:
    return lambda name: name.lower().endswith(endings)


# Whether a name is a model in a single file, in order of preference. Of several matches of one, the user chooses.
_SINGLE = (*map(_ends, SINGLE_FILES), is_forest, _ends(*PICKLES))


def find_file(names: Sequence[str], name: str, where: str) -> DetectedModel:
    """Return a model in a single file, with its files of weights. Raises InvalidRequest if it does not exist."""
    if name not in names:
        similar = [file for file in names if file.endswith(SINGLE_FILES)]
        raise InvalidRequest(f"{where} has no file '{name}'; found {', '.join(similar[:8]) or 'no models'}")
    weights = str(PurePosixPath(name).with_suffix(".bin")) if name.endswith(".xml") else ""
    # Exporters name the external weights of an ONNX file by its name with another ending.
    beside = [file for file in names if file == weights or (name.endswith(".onnx") and file.startswith(name))]
    folder = PurePosixPath(name).parent
    texts = [file for file in names if file in {str(folder / text) for text in TEXT_FILES}]
    if folder.name in TEXT_FOLDERS:
        texts += [file for file in names if file in {str(folder.parent / text) for text in TEXT_FILES}]
    return DetectedModel(Kind.FILE, (name, *(file for file in (*beside, *texts) if file != name)))


def is_part(name: str) -> bool:
    """Whether this is one of the parts of a GGUF file that has been split."""
    return _PART.search(name) is not None


def _chosen(names: Sequence[str], is_weights: Callable[[str], bool]) -> tuple[str, ...]:
    return tuple(name for name in names if "/" not in name and (is_weights(name) or name.endswith(_COMPANIONS)))


def _require(names: Sequence[str], required: Sequence[str], where: str) -> None:
    for name in required:
        if name not in names:
            raise InvalidRequest(
                f"{where} is not complete: {name} is missing; create both with convert_tokenizer … "
                "--with-detokenizer of openvino-tokenizers"
            )
