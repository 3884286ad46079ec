"""Check single model files: readable, and with contents that the server's rules accept, without their frameworks."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from conch.base.errors import ConfigError, ModelLoadError
from conch.base.typed_json import check_json_values
from conch.check.finding import Finding, Place
from conch.check.models.checked_model import CheckedModel
from conch.check.models.config import named_gpus
from conch.check.models.torch_script_file import DamagedScript, read_script
from conch.domain.config.resolve import resolve
from conch.domain.files.ir_file import NotIr, read_ir
from conch.domain.files.onnx_file import NotOnnx, read_onnx
from conch.domain.files.signature import Signature
from conch.server.backends.base import ModelSource
from conch.server.backends.fil.forest_files import check_form, locate_forest
from conch.server.backends.pytorch.archive import Format, open_archive
from conch.server.backends.pytorch.files import check_arguments, check_file, file_path, is_code
from conch.server.backends.signature import (
    check_signature,
    complete_document,
    default_max_batch_size,
    needs_completion,
)

# Larger JSON is not parsed here, because that takes several times its size in memory.
_MAX_JSON_BYTES = 64 << 20

_LFS_HEAD = b"version https://git-lfs.github.com/spec/"

Checked = tuple[CheckedModel, list[Finding]]


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


def check_contents(model: CheckedModel, version: int, path: Path) -> Checked | None:
    """Check the file of a version; return the model, completed from the file, and the findings.

    None if only its framework can read the file.
    """
    backend = model.config.backend
    if backend in ("onnxruntime", "openvino") and path.suffix == ".onnx":
        return _check_onnx(model, path / "model.onnx" if path.is_dir() else path)
    if backend == "openvino" and path.suffix == ".xml":
        return _check_ir(model, path)
    reader = _READERS.get(backend)
    return reader(model, ModelSource(model.config, version, model.directory, {})) if reader else None


def _check_onnx(model: CheckedModel, path: Path) -> Checked:
    try:
        onnx = read_onnx(path)
    except NotOnnx as error:
        return model, [_damaged(path, model, f"is not a valid ONNX model: {error}")]
    missing = [name for name in onnx.external if not (path.parent / name).is_file()]
    if missing:
        message = f"{path.name} of model '{model.name}' keeps weights in '{missing[0]}', which is not beside it"
        return model, [Finding("file-missing", Place(path), message)]
    if not onnx.shaped and needs_completion(model.files.document):
        message = (
            f"outputs of model '{model.name}' were not checked: {path.name} has no shapes for them; only a running "
            "server can check them"
        )
        return model, [Finding("model-unread", Place(path), message)]
    return _compared(model, onnx.signature)


def _check_ir(model: CheckedModel, path: Path) -> Checked:
    try:
        ir = read_ir(path)
    except NotIr as error:
        return model, [_damaged(path, model, f"is not valid OpenVINO IR: {error}")]
    weights = path.with_suffix(".bin")
    size = weights.stat().st_size if weights.is_file() else 0
    if size < ir.weights_bytes:
        actual = f"{weights.name} has {size}" if weights.is_file() else f"{weights.name} is missing"
        message = f"{path.name} of model '{model.name}' needs {ir.weights_bytes} bytes of weights, but {actual}"
        return model, [Finding("file-damaged" if size else "file-missing", Place(path), message)]
    parameters = model.config.parameters
    if ir.foreign and "CPU_EXTENSION_PATH" not in parameters:
        message = f"{path.name} of model '{model.name}' has layers of an extension: {', '.join(ir.foreign[:3])}"
        return model, [Finding("model-operations", Place(path), message)]
    if any(name in parameters for name in ("RESHAPE_IO_LAYERS", "CPU_EXTENSION_PATH")):
        return model, [unread(path, model, "openvino")]
    declared = {spec.name for spec in (*model.config.inputs, *model.config.outputs)}
    signature = ir.signature(declared)
    if model.config.max_batch_size > 1:
        # The server makes a fixed batch dimension of inputs variable, which changes the outputs too.
        fixed = [info for info in signature.inputs if info.dims[:1] not in ((), (-1,))]
        if fixed:
            return model, [unread(path, model, "openvino")]
    return _compared(model, signature)


def _check_torch(model: CheckedModel, source: ModelSource) -> Checked:
    try:
        document = check_file(source)
    except ConfigError as error:
        return model, [Finding("model-signature", model.folder.locate(error.message), error.message)]
    except ModelLoadError as error:
        return model, [Finding("file-damaged", Place(source.version_directory), error.message)]
    if document is source.config.document:
        return model, list(_torch_script(model, source))
    return _completed(model, document)


def _torch_script(model: CheckedModel, source: ModelSource) -> Iterator[Finding]:
    """Check the weights of a TorchScript file, and its arguments as the server does when it loads it."""
    if is_code(source):
        return
    path = file_path(source)
    archive = open_archive(path)
    if archive.format is not Format.TORCHSCRIPT:
        return
    try:
        arguments = read_script(archive)
        if arguments is not None and not arguments.single_dict:
            check_arguments(model.config, arguments.names, arguments.required)
    except DamagedScript as error:
        yield _damaged(path, model, f"is damaged: {error}")
    except ConfigError as error:
        yield Finding("model-signature", model.folder.locate(error.message), error.message)


def _check_forest(model: CheckedModel, source: ModelSource) -> Checked:
    try:
        path, kind = locate_forest(source, model.name)
        check_form(path, kind)
        if path.suffix == ".json" and path.stat().st_size <= _MAX_JSON_BYTES:
            content = path.read_bytes()
            check_json_values(content)
            json.loads(content)
    except ConfigError as error:
        return model, [Finding("config-invalid", model.folder.locate(error.message), error.message)]
    except ModelLoadError as error:
        return model, [Finding("file-missing", Place(source.version_directory), error.message)]
    except (ValueError, RecursionError) as error:
        return model, [_damaged(path, model, f"cannot be read as {kind}: {error}")]
    return model, [unread(path, model, "fil")]


_READERS: Mapping[str, Callable[[CheckedModel, ModelSource], Checked]] = {
    "fil": _check_forest,
    "pytorch": _check_torch,
}


def _compared(model: CheckedModel, signature: Signature) -> Checked:
    """Complete the configuration and compare it with the file, as the server does."""
    document: Mapping[str, Any] = model.files.document
    try:
        if needs_completion(document):
            document = complete_document(document, signature, default_max_batch_size({}))
        config = resolve(document, backend=None, gpus=named_gpus(model.files)).config
        check_signature(config, signature)
    except ConfigError as error:
        return model, [Finding("model-signature", model.folder.locate(error.message), error.message)]
    return model.completed(config), []


def _completed(model: CheckedModel, document: Mapping[str, Any]) -> Checked:
    try:
        return model.completed(resolve(document, backend=None, gpus=named_gpus(model.files)).config), []
    except ConfigError as error:
        return model, [Finding("model-signature", model.folder.locate(error.message), error.message)]


def _damaged(path: Path, model: CheckedModel, message: str) -> Finding:
    return Finding("file-damaged", Place(path), f"{path.name} of model '{model.name}' {message}")


def unread(path: Path, model: CheckedModel, backend: str) -> Finding:
    """Return the notice for a file that only its framework can read."""
    message = (
        f"the contents of {path.name} of model '{model.name}' were not checked: only a running server with backend "
        f"'{backend}' can read them"
    )
    return Finding("model-unread", Place(path), message)
