"""Which of a folder's files are a model, by their names alone: here, or in a list from elsewhere."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath

from conch.errors import InvalidRequest

# What is a model in one file, best first.
SINGLE_FILES = (".gguf", ".onnx", ".xml", ".pt", ".pt2")
# Configurations, tokenizers and templates, which lie beside the weights of language models.
_COMPANIONS = (".json", ".txt", ".model", ".jinja", ".tiktoken")
_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf")


class Kind(Enum):
    """What a folder holds."""

    IR_FOLDER = "a language model in OpenVINO's IR"
    CHECKPOINT = "a checkpoint"
    FILE = "a model in one file, the first of those found"


@dataclass(frozen=True, slots=True)
class Found:
    """What there is, and in which files."""

    kind: Kind
    names: tuple[str, ...]


def is_model_folder(path: Path) -> bool:
    """Whether this is a model's folder of a repository: it has a configuration or folders of versions."""
    return path.is_dir() and any(
        each.name == "config.pbtxt" or (each.is_dir() and each.name.isdecimal()) for each in path.iterdir()
    )


def find_model(names: Sequence[str], where: str) -> Found:
    """Tell what a folder with these files holds. Raises InvalidRequest if it is nothing, or may be several things."""
    if "openvino_model.xml" in names and "openvino_tokenizer.xml" in names:
        _demand(names, ("openvino_model.bin", "openvino_tokenizer.bin", "openvino_detokenizer.xml"), where)
        return Found(
            Kind.IR_FOLDER, _chosen(names, lambda name: name.endswith((".xml", ".bin")) and "openvino" in name)
        )
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        return Found(Kind.CHECKPOINT, _chosen(names, lambda name: name.endswith((".safetensors", ".py"))))
    for suffix in SINGLE_FILES:
        found = [name for name in names if name.lower().endswith(suffix)]
        if len(found) > 1:
            shown = ", ".join(found[:8]) + (" …" if len(found) > 8 else "")
            raise InvalidRequest(f"{where} has several models, one of which must be named: {shown}")
        if found:
            return find_file(names, found[0], where)
    present = ", ".join(names[:8]) or "nothing"
    raise InvalidRequest(
        f"{where} holds no model: neither openvino_model.xml with openvino_tokenizer.xml, nor config.json with "
        f".safetensors files, nor one of {', '.join(SINGLE_FILES)}; it holds {present}"
    )


def find_file(names: Sequence[str], name: str, where: str) -> Found:
    """Tell which files belong to a model in one file: its weights. Raises InvalidRequest if it is not there."""
    if name not in names:
        alike = [each for each in names if each.endswith(SINGLE_FILES)]
        raise InvalidRequest(f"{where} has no file '{name}'; there are {', '.join(alike[:8]) or 'no models'}")
    weights = str(PurePosixPath(name).with_suffix(".bin")) if name.endswith(".xml") else ""
    # Exporters call what an ONNX file keeps its weights in by its name with an ending more.
    beside = [each for each in names if each == weights or (name.endswith(".onnx") and each.startswith(name))]
    return Found(Kind.FILE, (name, *(each for each in beside if each != name)))


def is_part(name: str) -> bool:
    """Whether this is one of the parts of a GGUF file that has been split."""
    return _PART.search(name) is not None


def _chosen(names: Sequence[str], is_weights: Callable[[str], bool]) -> tuple[str, ...]:
    return tuple(name for name in names if "/" not in name and (is_weights(name) or name.endswith(_COMPANIONS)))


def _demand(names: Sequence[str], wanted: Sequence[str], where: str) -> None:
    for name in wanted:
        if name not in names:
            raise InvalidRequest(
                f"{where} is not complete: {name} is missing; convert_tokenizer … --with-detokenizer of "
                "openvino-tokenizers makes tokenizer and detokenizer"
            )
