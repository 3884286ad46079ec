"""Determine the repository entry of a model file or folder: its backend, configuration and files.

Files are inspected without their frameworks, so that models that cannot be served are refused before they are copied.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.text_format import MessageToString

from conch.base.errors import InvalidRequest
from conch.base.suggestion import did_you_mean
from conch.domain.files.onnx_file import NotOnnx, read_onnx
from conch.domain.llm.text_model import FILES as TEXT_FILES
from conch.domain.llm.text_model import TOKENIZER, is_encoder
from conch.domain.tensor import BYTES, DATATYPES
from conch.domain.triton_messages import ModelConfig as ConfigMessage
from conch.domain.triton_messages import config_datatype
from conch.server.backends.fil.forest_files import FILENAMES, detect_form
from conch.server.backends.pytorch.archive import Format, open_archive
from conch.server.repository.model_kinds import (
    FOREST_ENDINGS,
    PICKLES,
    SAVED_MODEL_FILE,
    TEXT_FOLDERS,
    Kind,
    find_model,
    is_forest,
    is_part,
)

FIRST_VERSION = "1"
_NO_TENSOR = "ONNX type 0"
_COMMON_ENDINGS = (".json", ".txt", ".model")  # of forests, and of many other files
_LFS_HEAD = b"version https://git-lfs"
# How files begin that are not models, in lower case → what they are.
_OTHER_FILES = {
    b"<!doctype html": "a web page: the download needs a login, or another URL",
    b"<html": "a web page: the download needs a login, or another URL",
    b"\x89png": "an image (PNG)",
    b"\xff\xd8\xff": "an image (JPEG)",
    b"gif8": "an image (GIF)",
    b"%pdf": "a PDF document",
    b"\x1f\x8b": "compressed with gzip: unpack it",
    b"7z\xbc\xaf": "a 7-Zip archive: unpack it",
    b"pk\x03\x04": "a ZIP archive: unpack it",
    b"\x7felf": "a program or library",
    b"#!": "a script",
    b"gguf": "a GGUF file: let its name end with .gguf",
}
_NAMED = {b"gguf": (".gguf",)}  # models with the ending that they need
# Endings of models that are not served as they are → what they are.
_OTHER_MODELS = {
    **dict.fromkeys(
        (".h5", ".keras"), "a Keras model: model.export(FOLDER) in Python writes a SavedModel, which is served"
    ),
    ".tflite": "a TensorFlow Lite model: ovc (pip install openvino) converts it to .xml",
    ".pb": "part of a TensorFlow model: name the folder with saved_model.pb",
    **dict.fromkeys((".safetensors", ".bin"), "a file of weights: name its folder, or the .xml beside it"),
    **dict.fromkeys((".plan", ".engine"), "a TensorRT plan: it is NAME/1/model.plan in a repository"),
}
_COMPRESSED = (b"pk\x03\x04", b"\x1f\x8b")
_ZIPPED = (".pt", ".pth", ".pt2", ".keras", *PICKLES)  # models that are ZIP archives or compressed
_HEAD_BYTES = 64
_VERSION_FIELD = b"\x08"  # of protobuf: SavedModel.saved_model_schema_version
SAVED_MODEL = "model.savedmodel"  # the folder, as in Triton
# Texts and pairs in a batch, where only the model's files say what it is.
_MAX_TEXTS = 32
_EXPORTED = ("model.onnx", "onnx/model.onnx", "openvino_model.xml", "openvino/openvino_model.xml")
_CONVERSION = "optimum-cli export openvino --model {source} FOLDER"


@dataclass(frozen=True, slots=True)
class EntryOptions:
    """Options of the user. Tensors are (name, datatype, dims), with datatypes such as FP32 or TYPE_FP32."""

    backend: str = ""
    inputs: Sequence[tuple[str, str, Sequence[int]]] = ()
    outputs: Sequence[tuple[str, str, Sequence[int]]] = ()
    max_batch_size: int = 0
    allow_pickles: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """The files of a model in the repository. Names of files and texts are relative to the version's folder."""

    backend: str
    files: Mapping[str, Path]
    texts: Mapping[str, str] = field(default_factory=dict)
    config: str = ""  # of config.pbtxt, "" if none is needed
    generates: bool = False  # whether it is a language model
    notes: tuple[str, ...] = ()


def entry_of(source: Path, options: EntryOptions) -> Entry:
    """Return the entry of a file or folder. Raises InvalidRequest with what is missing, or how to convert the model."""
    if not source.exists():
        raise InvalidRequest(f"'{source}' is not a file or folder")
    entry = _of_folder(source, options) if source.is_dir() else _of_file(source, options)
    if options.max_batch_size and not (options.inputs or options.outputs):
        raise InvalidRequest("--max-batch-size has no effect without --input and --output: set it in config.pbtxt")
    if entry.generates and (options.inputs or options.outputs):
        raise InvalidRequest("the tensors of a language model are fixed: leave out --input and --output")
    for path in entry.files.values():
        _check_content(path)
    return entry


def write_entry(folder: Path, entry: Entry, place: Callable[[Path, Path], object]) -> None:
    """Write the first version of a model into its folder; `place` copies or links a file to a path."""
    version = folder / FIRST_VERSION
    version.mkdir()
    for name, path in entry.files.items():
        (version / name).parent.mkdir(parents=True, exist_ok=True)
        place(path.absolute(), version / name)
    for name, text in entry.texts.items():
        (version / name).write_text(text, encoding="utf-8")
    if entry.config:
        (folder / "config.pbtxt").write_text(entry.config, encoding="utf-8")


def link(path: Path, target: Path) -> None:
    """Create a symbolic link at `target`."""
    target.symlink_to(path)


def _of_folder(folder: Path, options: EntryOptions) -> Entry:
    if (folder / TOKENIZER).is_file() and is_encoder(folder) and options.backend in ("", "onnxruntime", "openvino"):
        # Checkpoints of the Hub often have an encoder in these formats beside its weights.
        exported = next((folder / name for name in _EXPORTED if (folder / name).is_file()), None)
        if exported is not None:
            return _of_file(exported, options)
    model = find_model(sorted(path.name for path in folder.iterdir() if path.is_file()), f"'{folder}'")
    if model.kind is Kind.IR_FOLDER:
        return _ir_folder(folder, model.names, options)
    if model.kind is Kind.CHECKPOINT:
        return _checkpoint(folder, model.names, options)
    if model.kind is Kind.SAVED_MODEL:
        return _saved_model(folder, options)
    return _of_file(folder / model.names[0], options)


def _of_file(path: Path, options: EntryOptions) -> Entry:
    make = _forest if is_forest(path.name) or _is_forest_inside(path) else _FILES.get(path.suffix.lower())
    if make is None:
        _check_content(path, unknown=True)
        if kind := _OTHER_MODELS.get(path.suffix.lower()):
            raise InvalidRequest(f"'{path}' is {kind}")
        known = ", ".join(ending for ending in (*_FILES, *FOREST_ENDINGS) if ending not in PICKLES)
        raise InvalidRequest(
            f"'{path}' is not a model: expected {known}, a forest of XGBoost or LightGBM "
            f"({', '.join(_COMMON_ENDINGS)}), or a folder with a language model"
        )
    return make(path, options)


def _is_forest_inside(path: Path) -> bool:
    """Whether a file of any name begins as forests do; their endings are common."""
    return path.suffix.lower() in _COMMON_ENDINGS and bool(detect_form(path))


def _ir_folder(folder: Path, names: Iterable[str], options: EntryOptions) -> Entry:
    backend = _backend(options, "openvino_genai")
    return Entry(backend, {name: folder / name for name in names}, config=_config(backend), generates=True)


def _checkpoint(folder: Path, names: Iterable[str], options: EntryOptions) -> Entry:
    conversion = _CONVERSION.format(source=folder)
    if options.backend == "openvino_genai":
        raise InvalidRequest(
            f"'{folder}' is a checkpoint, but openvino_genai runs OpenVINO IR and GGUF files: convert it with "
            f"{conversion} (after pip install 'optimum[openvino]'), then add FOLDER"
        )
    pooling = is_encoder(folder)
    backend = _backend(options, "vllm", *(() if pooling else ("tensorrtllm",)))
    _check_shards(folder)
    arguments = {"model": "checkpoint", **({"runner": "pooling"} if pooling else {})}
    return Entry(
        backend,
        {f"checkpoint/{name}": folder / name for name in names},
        {"model.json": json.dumps(arguments, indent=2) + "\n"},
        _config(backend),
        generates=not pooling,
        notes=(
            f"model.json is for arguments of {backend}",
            f"to run it on a CPU, convert it with {conversion} and add FOLDER instead",
        ),
    )


def _saved_model(folder: Path, options: EntryOptions) -> Entry:
    backend = _backend(options, "openvino")
    with (folder / SAVED_MODEL_FILE).open("rb") as file:
        if file.read(1) != _VERSION_FIELD:
            raise InvalidRequest(f"'{folder}' has a {SAVED_MODEL_FILE} that is not a SavedModel of TensorFlow")
    files = {f"{SAVED_MODEL}/{path.relative_to(folder)}": path for path in sorted(folder.rglob("*")) if path.is_file()}
    return Entry(backend, files, config=_config(backend, options, SAVED_MODEL))


def _check_shards(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return
    try:
        needed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InvalidRequest(f"'{index}' is damaged: it must map weights to files in 'weight_map'") from None
    missing = sorted(name for name in needed if not (folder / str(name)).is_file())
    if missing:
        raise InvalidRequest(
            f"'{folder}' is not complete: {missing[0]} is missing, one of {len(needed)} files of weights"
        )


def _gguf(path: Path, options: EntryOptions) -> Entry:
    backend = _backend(options, "openvino_genai")
    if is_part(path.name):
        raise InvalidRequest(
            f"'{path}' is a part of a split GGUF file, which is not supported: merge the parts with llama-gguf-split "
            f"--merge {path.name} MERGED.gguf"
        )
    _check_magic(path, b"GGUF", "GGUF file")
    return Entry(backend, {"model.gguf": path}, config=_config(backend), generates=True)


def _onnx(path: Path, options: EntryOptions) -> Entry:
    backend = _backend(options, "onnxruntime", "openvino")
    _check_content(path)
    try:
        model = read_onnx(path)
    except (NotOnnx, ValueError) as error:
        raise InvalidRequest(f"'{path}' is not a valid ONNX model: {error}") from None
    external = model.external
    for info in model.signature.outputs:
        if info.native_type == _NO_TENSOR:
            raise InvalidRequest(
                f"output '{info.name}' of '{path}' is a sequence or map, not a tensor, as written by scikit-learn's "
                "ZipMap: convert the model with skl2onnx.to_onnx(model, X, options={'zipmap': False}), which makes it "
                "an array of probabilities"
            )
    files = {"model.onnx": path}
    for name in external:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InvalidRequest(f"'{path}' has weights in '{name}', which is not in the same folder")
        files[name] = _beside(path, path.parent / name, "weights")
    # Without the field, the file's name would select onnxruntime.
    config = _config(backend, options, "model.onnx" if backend == "openvino" else "")
    return _with_texts(Entry(backend, files, config=config), path)


def _ir(path: Path, options: EntryOptions) -> Entry:
    backend = _backend(options, "openvino")
    with path.open("rb") as file:
        if b"<net" not in file.read(4096):
            raise InvalidRequest(f"'{path}' is not OpenVINO IR: it must begin with <net …>")
    weights = _beside(path, path.with_suffix(".bin"), "weights")
    return _with_texts(
        Entry(backend, {"model.xml": path, "model.bin": weights}, config=_config(backend, options)), path
    )


def _with_texts(entry: Entry, path: Path) -> Entry:
    """Return the entry of a model with the files of its checkpoint that make it a model of texts, if it has them."""
    folder = path.absolute().parent
    folders = (folder.parent, folder) if folder.name in TEXT_FOLDERS else (folder,)
    text_files = {name: place / name for place in folders for name in TEXT_FILES if (place / name).is_file()}
    if TOKENIZER not in text_files:
        return entry
    config = entry.config or f'backend: "{entry.backend}"\n'
    if "max_batch_size" not in config:
        config += f"max_batch_size: {_MAX_TEXTS}\ndynamic_batching {{ }}\n"
    return replace(entry, files={**entry.files, **text_files}, config=config)


def _torch(path: Path, options: EntryOptions) -> Entry:
    backend = _backend(options, "pytorch")
    _check_content(path)
    archive = open_archive(path)
    name = "model.pt" if archive.format is Format.TORCHSCRIPT else "model.pt2"
    if archive.format is not Format.EXPORTED and not (options.inputs and options.outputs):
        raise InvalidRequest(
            f"a {archive.format.value} file does not contain datatypes and shapes: add --input for each argument of "
            "forward and --output for each tensor that it returns, such as --input x:FP32:-1,3,224,224 "
            "--output OUTPUT__0:FP32:-1,1000; files of torch.export.save do not need them"
        )
    return Entry(backend, {name: path}, config=_config(backend, options))


def _forest(path: Path, options: EntryOptions) -> Entry:
    backend = _backend(options, "fil")
    _check_content(path)
    form = detect_form(path)
    if not form:
        raise InvalidRequest(
            f"'{path}' is not a forest: expected JSON or UBJSON of XGBoost, text of LightGBM, or a treelite checkpoint"
        )
    return Entry(backend, {FILENAMES[form]: path}, config=_config(backend))


def _pickle(path: Path, options: EntryOptions) -> Entry:
    backend = _backend(options, "python")
    if not options.allow_pickles:
        raise InvalidRequest(
            f"'{path}' is a pickle, which is not loaded because it can run any code: convert it to ONNX with skl2onnx, "
            f"or, if you trust its source, conch run {path} --allow-pickled-models"
        )
    # The last part of the name tells joblib how the file is compressed.
    name = f"model{path.suffix.lower()}"
    return Entry(backend, {name: path}, {"model.py": _PICKLE_CODE.format(name=name)}, _config(backend))


# The model's code: Triton's way to a Python model, with Conch's reader of pickles.
_PICKLE_CODE = """from pathlib import Path

from conch_child.python.adapters.pickled_model import PickledModel


class TritonPythonModel(PickledModel):
    path = Path(__file__).with_name("{name}")
    # Inherited: auto_complete_config, initialize, execute.
"""

_FILES: dict[str, Callable[[Path, EntryOptions], Entry]] = {
    ".gguf": _gguf,
    ".onnx": _onnx,
    ".xml": _ir,
    ".pt": _torch,
    ".pth": _torch,
    ".pt2": _torch,
    **dict.fromkeys(PICKLES, _pickle),
}


def _backend(options: EntryOptions, *supported: str) -> str:
    if options.backend and options.backend not in supported:
        raise InvalidRequest(f"--backend {options.backend} does not support this model: use {' or '.join(supported)}")
    return options.backend or supported[0]


def _config(backend: str, options: EntryOptions | None = None, filename: str = "") -> str:
    """Return a minimal config.pbtxt. Raises InvalidRequest for an unknown datatype."""
    document: dict[str, Any] = {"backend": backend}
    if options is not None:
        if not (options.inputs or options.outputs or filename):
            return ""
        if options.inputs or options.outputs:
            document["max_batch_size"] = options.max_batch_size
            document["input"] = [_tensor("--input", *spec) for spec in options.inputs]
            document["output"] = [_tensor("--output", *spec) for spec in options.outputs]
        if filename:
            document["default_model_filename"] = filename
    try:
        text: str = MessageToString(ParseDict(document, ConfigMessage()))
    except ParseError as error:  # a size of more than 64 bits
        raise InvalidRequest(f"--input or --output: {error}") from None
    return text


def _tensor(flag: str, name: str, datatype: str, dims: Sequence[int]) -> dict[str, Any]:
    wire = datatype.upper().removeprefix("TYPE_").replace("STRING", BYTES)
    if wire not in DATATYPES:
        hint = did_you_mean(wire, sorted(DATATYPES), f"; expected {', '.join(sorted(DATATYPES))}")
        raise InvalidRequest(f"{flag} {name}: unknown datatype '{datatype}'{hint}")
    return {"name": name, "data_type": config_datatype(wire), "dims": dims}


def _beside(path: Path, needed: Path, kind: str) -> Path:
    if not needed.is_file():
        raise InvalidRequest(f"'{path}' has its {kind} in '{needed.name}', which is not in the same folder")
    return needed


def _check_magic(path: Path, magic: bytes, kind: str) -> None:
    _check_content(path)
    with path.open("rb") as file:
        if file.read(len(magic)) != magic:
            raise InvalidRequest(f"'{path}' is not a {kind}: it does not begin with {magic.decode()}")


def _check_content(path: Path, *, unknown: bool = False) -> None:
    """Refuse pointers that a clone without Git LFS contains; and models, or unknown files, that are something else."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).lstrip().lower()
    except OSError as error:
        raise InvalidRequest(f"'{path}' cannot be read: {error.strerror}") from None
    if head.startswith(_LFS_HEAD):
        raise InvalidRequest(f"'{path}' is a Git LFS pointer, not the file: run git lfs pull in its repository")
    ending = path.suffix.lower()
    if not (unknown or ending in (*_FILES, *FOREST_ENDINGS, ".safetensors")):
        return  # companions of models can be scripts, and a network may have no weights
    if not head and not path.stat().st_size:
        raise InvalidRequest(f"'{path}' is empty")
    for start, kind in _OTHER_FILES.items():
        if head.startswith(start) and ending not in (_ZIPPED if start in _COMPRESSED else _NAMED.get(start, ())):
            raise InvalidRequest(f"'{path}' is {kind}")
