"""What a file or a folder with a model becomes in a repository: which backend, which files under which names.

Files are looked into as far as that needs no framework, so that what cannot be served is refused before it is copied.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.text_format import MessageToString

from conch.backends.pytorch.archive import Format, open_archive
from conch.check.files.onnx_file import NotOnnx, read_onnx
from conch.cli.repository.model_kinds import Kind, find_model, is_part
from conch.errors import InvalidRequest
from conch.tensor import BYTES
from conch.triton_messages import ModelConfig as ConfigMessage

_NO_TENSOR = "ONNX type 0"
_LFS_HEAD = b"version https://git-lfs"
_CONVERSION = "optimum-cli export openvino --model {source} FOLDER"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user says of the model. Tensors are (name, datatype, dims), datatypes as in FP32 or TYPE_FP32."""

    backend: str = ""
    inputs: Sequence[tuple[str, str, Sequence[int]]] = ()
    outputs: Sequence[tuple[str, str, Sequence[int]]] = ()
    max_batch_size: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A model as it will lie in the repository. Names of files and texts are relative to the version's folder."""

    backend: str
    files: Mapping[str, Path]
    texts: Mapping[str, str] = field(default_factory=dict)
    config: str = ""  # config.pbtxt, "" where files tell all that a server needs
    generates: bool = False  # it is a language model
    notes: tuple[str, ...] = ()


def entry_of(source: Path, asked: Asked) -> Entry:
    """Return what a file or a folder becomes. Raises InvalidRequest saying what is missing, or what converts it."""
    if not source.exists():
        raise InvalidRequest(f"there is no '{source}'")
    entry = _of_folder(source, asked) if source.is_dir() else _of_file(source, asked)
    if entry.generates and (asked.inputs or asked.outputs):
        raise InvalidRequest("a language model has tensors of its own: leave out --input and --output")
    for path in entry.files.values():
        _check_content(path)
    return entry


def _of_folder(folder: Path, asked: Asked) -> Entry:
    found = find_model(sorted(path.name for path in folder.iterdir() if path.is_file()), f"'{folder}'")
    if found.kind is Kind.IR_FOLDER:
        return _ir_folder(folder, found.names, asked)
    if found.kind is Kind.CHECKPOINT:
        return _checkpoint(folder, found.names, asked)
    return _of_file(folder / found.names[0], asked)


def _of_file(path: Path, asked: Asked) -> Entry:
    make = _FILES.get(path.suffix.lower())
    if make is None:
        known = ", ".join(_FILES)
        raise InvalidRequest(f"'{path}' is none of {known}, nor a folder with a language model")
    return make(path, asked)


def _ir_folder(folder: Path, names: Iterable[str], asked: Asked) -> Entry:
    backend = _backend(asked, "openvino_genai")
    return Entry(backend, {name: folder / name for name in names}, config=_config(backend), generates=True)


def _checkpoint(folder: Path, names: Iterable[str], asked: Asked) -> Entry:
    conversion = _CONVERSION.format(source=folder)
    if asked.backend == "openvino_genai":
        raise InvalidRequest(
            f"'{folder}' is a checkpoint, and openvino_genai runs OpenVINO's IR and GGUF files; after "
            f"pip install 'optimum[openvino]', this converts it: {conversion}; then add FOLDER"
        )
    backend = _backend(asked, "vllm", "tensorrtllm")
    _check_shards(folder)
    return Entry(
        backend,
        {f"checkpoint/{name}": folder / name for name in names},
        {"model.json": json.dumps({"model": "checkpoint"}, indent=2) + "\n"},
        _config(backend),
        generates=True,
        notes=(f"arguments of {backend} go into model.json", f"for CPUs, {conversion} makes a folder to add instead"),
    )


def _check_shards(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        wanted = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InvalidRequest(f"'{index}' is damaged: it must say in which files the weights are") from None
    missing = sorted(name for name in wanted if not (folder / str(name)).is_file())
    if missing:
        raise InvalidRequest(
            f"'{folder}' is not complete: {missing[0]} is missing, one of {len(wanted)} files of weights"
        )


def _gguf(path: Path, asked: Asked) -> Entry:
    backend = _backend(asked, "openvino_genai")
    if is_part(path.name):
        raise InvalidRequest(
            f"'{path}' is one of several parts, which are not read: llama-gguf-split --merge {path.name} MERGED.gguf "
            "makes one file of them"
        )
    _expect(path, b"GGUF", "GGUF file")
    return Entry(backend, {"model.gguf": path}, config=_config(backend), generates=True)


def _onnx(path: Path, asked: Asked) -> Entry:
    backend = _backend(asked, "onnxruntime", "openvino")
    _check_content(path)
    try:
        model = read_onnx(path)
    except (NotOnnx, ValueError) as error:
        raise InvalidRequest(f"'{path}' is no ONNX model: {error}") from None
    external = model.external
    for info in model.signature.outputs:
        if info.native_type == _NO_TENSOR:
            raise InvalidRequest(
                f"output '{info.name}' of '{path}' is no tensor but a sequence or a map, as ZipMap of scikit-learn's "
                "converter makes them: convert with options={'zipmap': False}, which leaves an array of probabilities "
                "in its place: skl2onnx.to_onnx(model, X, options={'zipmap': False})"
            )
    files = {"model.onnx": path}
    for name in external:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InvalidRequest(f"'{path}' keeps weights in '{name}', which is not beside it")
        files[name] = _beside(path, path.parent / name, "weights")
    # By its name alone the file would be onnxruntime's.
    config = _config(backend, asked, "model.onnx" if backend == "openvino" else "")
    return Entry(backend, files, config=config)


def _ir(path: Path, asked: Asked) -> Entry:
    backend = _backend(asked, "openvino")
    with path.open("rb") as file:
        if b"<net" not in file.read(4096):
            raise InvalidRequest(f"'{path}' is no OpenVINO IR: it must begin with <net …>")
    weights = _beside(path, path.with_suffix(".bin"), "weights")
    return Entry(backend, {"model.xml": path, "model.bin": weights}, config=_config(backend, asked))


def _torch(path: Path, asked: Asked) -> Entry:
    backend = _backend(asked, "pytorch")
    _check_content(path)
    archive = open_archive(path)
    name = "model.pt" if archive.format is Format.TORCHSCRIPT else "model.pt2"
    if archive.format is not Format.EXPORTED and not (asked.inputs and asked.outputs):
        raise InvalidRequest(
            f"a {archive.format.value} file says nothing of datatypes and shapes: add --input for each argument of "
            "forward and --output for each tensor that it returns, like --input x:FP32:-1,3,224,224 "
            "--output OUTPUT__0:FP32:-1,1000; what torch.export.save writes needs none of this"
        )
    return Entry(backend, {name: path}, config=_config(backend, asked))


_FILES: dict[str, Callable[[Path, Asked], Entry]] = {
    ".gguf": _gguf,
    ".onnx": _onnx,
    ".xml": _ir,
    ".pt": _torch,
    ".pt2": _torch,
}


def _backend(asked: Asked, *fit: str) -> str:
    if asked.backend and asked.backend not in fit:
        raise InvalidRequest(f"--backend {asked.backend} does not run this: it is for {' or '.join(fit)}")
    return asked.backend or fit[0]


def _config(backend: str, asked: Asked | None = None, filename: str = "") -> str:
    """Return the text of config.pbtxt: as little as is needed. Raises InvalidRequest for a datatype that is none."""
    document: dict[str, Any] = {"backend": backend}
    if asked is not None:
        if not (asked.inputs or asked.outputs or filename):
            return ""
        if asked.inputs or asked.outputs:
            document["max_batch_size"] = asked.max_batch_size
            document["input"] = [_tensor(*each) for each in asked.inputs]
            document["output"] = [_tensor(*each) for each in asked.outputs]
        if filename:
            document["default_model_filename"] = filename
    try:
        text: str = MessageToString(ParseDict(document, ConfigMessage()))
    except ParseError as error:
        raise InvalidRequest(f"--input or --output: {error}") from None
    return text


def _tensor(name: str, datatype: str, dims: Sequence[int]) -> dict[str, Any]:
    written = "STRING" if datatype.upper() == BYTES else datatype.upper()
    return {"name": name, "data_type": f"TYPE_{written.removeprefix('TYPE_')}", "dims": dims}


def _beside(path: Path, needed: Path, what: str) -> Path:
    if not needed.is_file():
        raise InvalidRequest(f"'{path}' has its {what} in '{needed.name}', which is not beside it")
    return needed


def _expect(path: Path, magic: bytes, what: str) -> None:
    _check_content(path)
    with path.open("rb") as file:
        if file.read(len(magic)) != magic:
            raise InvalidRequest(f"'{path}' is no {what}: it does not begin with {magic.decode()}")


def _check_content(path: Path) -> None:
    """Refuse what is no model: nothing at all, and the pointers that a clone without Git LFS leaves behind."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_LFS_HEAD))
    except OSError as error:
        raise InvalidRequest(f"'{path}' cannot be read: {error.strerror}") from None
    if not head and path.suffix.lower() in (*_FILES, ".safetensors"):  # a network may have no weights
        raise InvalidRequest(f"'{path}' is empty")
    if head == _LFS_HEAD:
        raise InvalidRequest(f"'{path}' is a pointer of Git LFS, not the file: run git lfs pull where it is from")
