"""Read the facts of a model from its files: a checkpoint, a single file, or the models of a repository."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from conch.base.errors import InvalidRequest
from conch.domain.config.document import to_document
from conch.domain.config.pbtxt import parse_pbtxt
from conch.domain.files.gguf_file import GgufFile, NotGguf, read_gguf
from conch.domain.files.ir_file import NotIr, read_ir
from conch.domain.files.model_folder import is_model, is_model_name
from conch.domain.files.onnx_file import NotOnnx, read_onnx
from conch.domain.files.signature import TensorInfo
from conch.domain.triton_messages import wire_datatype
from conch.measure.advise.advice_facts import DeclaredTensors, Failure, ModelFacts, ModelForm
from conch.measure.advise.checkpoint import read_checkpoint

_FORMS = {
    ".gguf": ModelForm.GGUF,
    ".onnx": ModelForm.ONNX,
    ".xml": ModelForm.IR,
    ".pt": ModelForm.TORCH,
    ".pt2": ModelForm.TORCH_EXPORT,
    ".plan": ModelForm.PLAN,
    ".py": ModelForm.PYTHON,
}
_TREE_FILES = ("xgboost.model", "xgboost.json", "xgboost.ubj", "model.txt", "checkpoint.tl")  # of the fil backend
_VALID = (
    "expected the folder of a checkpoint with config.json, a .gguf, .onnx, .xml, .pt, .pt2, .plan or .py file, or a "
    "repository of models with config.pbtxt"
)


def read_models(path: Path) -> list[ModelFacts]:
    """Return the models at a path: several of a repository. Raises ConchError."""
    try:
        return list(_models(path))
    except (NotGguf, NotIr, NotOnnx) as error:
        raise Failure(f"'{path}' cannot be read: {error}") from None
    except OSError as error:
        raise Failure(f"'{error.filename or path}' cannot be read: {error.strerror}") from None


def _models(path: Path) -> Iterator[ModelFacts]:
    if not path.exists():
        raise Failure(f"there is no '{path}': {_VALID}")
    if path.is_file():
        yield _checkpoint(path.parent, path.parent.name) if path.name == "config.json" else _file(path, path.stem)
    elif is_language_ir(path):
        yield _language_ir(path, path.resolve().name)
    elif (path / "openvino_model.xml").is_file():
        yield _file(path / "openvino_model.xml", path.resolve().name)
    elif (path / "config.json").is_file():
        yield _checkpoint(path, path.resolve().name)
    elif is_model(path):
        yield _entry(path)
    else:
        entries = [entry for entry in sorted(path.iterdir()) if is_model_name(entry.name) and is_model(entry)]
        if entries:
            yield from map(_entry, entries)
            return
        files = [file for file in sorted(path.iterdir()) if file.suffix in _FORMS and file.suffix != ".py"]
        if len(files) != 1:
            content = ", ".join(file.name for file in files) or "no model"
            raise Failure(f"'{path}' contains {content}: {_VALID}")
        yield _file(files[0], path.resolve().name)


def _checkpoint(folder: Path, name: str, entry: Path | None = None, backend: str = "") -> ModelFacts:
    checkpoint = read_checkpoint(folder)
    shape = checkpoint.shape
    bits = checkpoint.matrix_bytes * 8
    return ModelFacts(
        name=name,
        path=folder,
        form=ModelForm.CHECKPOINT,
        size=checkpoint.weight_bytes,
        checkpoint=checkpoint,
        context=shape.context,
        kv_bytes_per_token=shape.kv_bytes_per_token(max(checkpoint.other_bytes, 2)),
        precision=f"{bits:.3g} bits",
        folder=entry,
        backend=backend,
    )


def is_language_ir(folder: Path) -> bool:
    """Return whether a folder has a language model in OpenVINO IR: its tokenizer, and a graph that gives logits.

    Encoders, which are exported with a tokenizer too, give hidden states. Raises Failure for models with images.
    """
    graph = folder / "openvino_model.xml"
    if (folder / "openvino_language_model.xml").is_file():
        raise Failure(
            f"'{folder}' is a language model with images (openvino_language_model.xml), which no backend of Conch "
            "serves; expected openvino_model.xml"
        )
    if not graph.is_file() or not (folder / "openvino_tokenizer.xml").is_file():
        return False
    return any("logits" in output.name.split(",") for output in read_ir(graph).outputs)


def _language_ir(folder: Path, name: str, entry: Path | None = None, backend: str = "") -> ModelFacts:
    """Return the facts of a language model in OpenVINO IR; those of its config.json are unknown without it."""
    context, per_token = 0, 0.0
    if (folder / "config.json").is_file():
        try:
            shape = read_checkpoint(folder).shape
        except InvalidRequest:  # of a family whose shape is unknown
            pass
        else:
            context, per_token = shape.context, shape.kv_bytes_per_token(2)
    return ModelFacts(
        name=name,
        path=folder,
        form=ModelForm.IR_LANGUAGE,
        size=(folder / "openvino_model.bin").stat().st_size,
        context=context,
        kv_bytes_per_token=per_token,
        precision="weights",
        folder=entry,
        backend=backend,
    )


def _file(path: Path, name: str, entry: Path | None = None, backend: str = "") -> ModelFacts:
    form = _FORMS.get(path.suffix.lower())
    if form is None:
        raise Failure(f"'{path}' is not a known model: {_VALID}")
    common: dict[str, Any] = {"name": name, "path": path, "form": form, "folder": entry, "backend": backend}
    size = path.stat().st_size
    if form is ModelForm.GGUF:
        return _gguf(read_gguf(path), size, common)
    if form is ModelForm.ONNX:
        onnx = read_onnx(path)
        size += sum(file.stat().st_size for name in onnx.external if (file := path.parent / name).is_file())
        signature = onnx.signature
        return ModelFacts(size=size, inputs=signature.inputs, outputs=signature.outputs, **common)
    if form is ModelForm.IR:
        signature = read_ir(path).signature(set())
        weights = path.with_suffix(".bin")
        size += weights.stat().st_size if weights.is_file() else 0
        return ModelFacts(size=size, inputs=signature.inputs, outputs=signature.outputs, **common)
    return ModelFacts(size=size, **common)


def _gguf(gguf: GgufFile, size: int, common: dict[str, Any]) -> ModelFacts:
    number = {key.partition(".")[2]: value for key, value in gguf.metadata.items() if isinstance(value, int)}
    heads = number.get("attention.head_count", 0)
    width = number.get("attention.key_length") or (number.get("embedding_length", 0) // heads if heads else 0)
    kv_heads = number.get("attention.head_count_kv", heads)
    common_type, _ = gguf.types.most_common(1)[0] if gguf.types else ("", 0)
    return ModelFacts(
        size=size,
        context=gguf.context_length,
        kv_bytes_per_token=2 * 2 * gguf.blocks * kv_heads * width,  # keys and values, in 16 bits
        precision=common_type,
        **common,
    )


def _entry(folder: Path) -> ModelFacts:
    """Return the facts of a model in a repository: its newest version."""
    config = folder / "config.pbtxt"
    document = to_document(parse_pbtxt(config.read_text(encoding="utf-8"), str(config))) if config.is_file() else {}
    backend = str(document.get("backend") or document.get("platform") or "")
    if backend == "ensemble" or "ensemble_scheduling" in document:
        return ModelFacts(
            name=folder.name, path=folder, form=ModelForm.ENSEMBLE, size=0, folder=folder, backend="ensemble"
        )
    versions = sorted((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), reverse=True)
    version = folder / str(versions[0]) if versions else folder
    weights = _weights(version) if (version / "model.json").is_file() else None
    for place in filter(None, (weights, version if version.is_dir() else None)):
        if is_language_ir(place):
            return replace(_language_ir(place, folder.name, folder, backend), version=int(version.name))
    if weights is not None:
        return replace(_checkpoint(weights, folder.name, folder, backend), version=int(version.name))
    names = sorted(version.iterdir()) if version.is_dir() else []
    named = [name for name in names if name.name == document.get("default_model_filename")]
    known = named or [name for name in names if name.stem == "model" and name.suffix in _FORMS]
    known = known or [name for name in names if name.suffix == ".gguf"]
    if known and known[0].suffix in _FORMS and known[0].is_file():
        facts = _file(known[0], folder.name, folder, backend)
        return replace(facts, version=int(version.name), declared=_declared(document))
    trees = [name for name in names if name.name in _TREE_FILES]
    if trees or backend == "fil":
        size = trees[0].stat().st_size if trees else 0
        path = trees[0] if trees else folder
        return ModelFacts(
            name=folder.name, path=path, form=ModelForm.TREES, size=size, folder=folder, backend=backend or "fil"
        )
    return ModelFacts(name=folder.name, path=folder, form=ModelForm.OTHER, size=0, folder=folder, backend=backend)


def _declared(document: dict[str, Any]) -> DeclaredTensors | None:
    """Return the tensors of a configuration; None if it leaves them to its model's file."""
    tensors = [
        tuple(
            TensorInfo(entry["name"], wire_datatype(entry["data_type"]), (*entry["dims"],))
            for entry in document.get(kind, ())
        )
        for kind in ("input", "output")
    ]
    return DeclaredTensors(int(document.get("max_batch_size", 0)), *tensors) if all(tensors) else None


def _weights(version: Path) -> Path | None:
    """Return the folder of the checkpoint that a `model.json` names, if it is on this machine."""
    import json

    try:
        document = json.loads((version / "model.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise Failure(f"'{version / 'model.json'}' cannot be read: {error}") from None
    name = document.get("model") if isinstance(document, dict) else None
    folder = version / name if isinstance(name, str) else None
    known = ("config.json", "openvino_model.xml")
    return folder if folder is not None and any((folder / name).is_file() for name in known) else None
