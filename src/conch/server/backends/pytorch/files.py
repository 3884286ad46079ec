"""Files of PyTorch models, located and validated without torch: for the backend and for `conch check`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conch.base.errors import Code, ConfigError, ModelLoadError
from conch.domain.files.signature import Signature
from conch.domain.model_config import ModelConfig
from conch.server.backends.base import ModelSource
from conch.server.backends.pytorch.archive import Format, exported_signature, open_archive, refuse_file_operators
from conch.server.backends.pytorch.naming import input_places, output_places
from conch.server.backends.signature import (
    check_signature,
    complete_document,
    default_max_batch_size,
    needs_completion,
)

MODEL_FILE = "model.pt"
_PACKAGE_FILE = "model.pt2"
_CODE_FILE = "model.py"
_MAX_SHOWN = 20  # arguments in a message


def check_file(
    source: ModelSource, read_arguments: Callable[[Path], Sequence[str]] = lambda _: ()
) -> Mapping[str, Any]:
    """Check the files of a model, as far as possible without torch.

    `read_arguments` returns the arguments of a TorchScript program, for the message that it needs a configuration.
    Returns the configuration's document, completed from the file if possible. Raises the errors of a load:
    ModelLoadError for a file that is missing, damaged or a pickle, ConfigError for one that contradicts the document.
    """
    document = source.config.document
    if is_code(source):
        code_path(source)
        if needs_completion(document):
            raise cannot_complete(source.config.name, "code")
        return document
    archive = open_archive(file_path(source))
    if archive.format is Format.TORCHSCRIPT:
        refuse_file_operators(archive)
    if archive.format is Format.EXPORTED:
        signature = exported_signature(archive)
        if needs_completion(document):
            return complete_document(document, signature, default_max_batch_size(source.settings))
        names = input_names(source.config)
        places = input_places(source.config.name, names, [info.name for info in signature.inputs])
        check_exported(source.config, signature, places)
    elif needs_completion(document):
        arguments = read_arguments(archive.path) if archive.format is Format.TORCHSCRIPT else ()
        raise cannot_complete(source.config.name, f"a {archive.format.value} file", arguments)
    return document


def is_code(source: ModelSource) -> bool:
    """Whether a model is a `model.py`. Raises ConfigError for an unknown runtime."""
    runtime = source.config.document.get("runtime", "")
    if runtime not in ("", _CODE_FILE):
        raise ConfigError(
            f"runtime of model '{source.config.name}' is '{runtime}'; the pytorch backend has only '{_CODE_FILE}'"
        )
    return bool(runtime) or source.config.default_model_filename.endswith(".py")


def code_path(source: ModelSource) -> Path:
    """Return the path of a model's code. Raises ModelLoadError if it is missing."""
    filename = source.config.default_model_filename
    path = source.version_directory / (filename if filename.endswith(".py") else _CODE_FILE)
    if not path.is_file():
        raise ModelLoadError(f"unable to find '{path}' for model '{source.config.name}'", Code.UNAVAILABLE)
    return path


def file_path(source: ModelSource) -> Path:
    """Return the path of a model's file: `default_model_filename`, `model.pt` or `model.pt2`. Raises ModelLoadError."""
    directory = source.version_directory
    path = directory / (source.config.default_model_filename or MODEL_FILE)
    # Triton looks for model.pt2 only with platform torch_aoti, which is optional here.
    for candidate in (path, directory / _PACKAGE_FILE) if path.name == MODEL_FILE else (path,):
        if candidate.is_file():
            return candidate
    present = sorted(file.name for file in directory.glob("*"))
    remedy = f'; to serve {_CODE_FILE}, write runtime: "{_CODE_FILE}" in config.pbtxt' if _CODE_FILE in present else ""
    held = f"the folder holds {', '.join(present)}" if present else "the folder is empty"
    raise ModelLoadError(
        f"unable to find '{path}' for model '{source.config.name}': {held}{remedy}",
        Code.UNAVAILABLE,
    )


def cannot_complete(model: str, kind: str, arguments: Sequence[str] = ()) -> ConfigError:
    """Return the error for a configuration without inputs or outputs. `arguments` are those of `forward`, if known."""
    names = arguments or ("INPUT__0",)
    inputs = " ".join(f'input {{ name: "{name}" data_type: TYPE_FP32 dims: [ -1 ] }}' for name in names)
    return ConfigError(
        f"autofill failed for model '{model}': {kind} has no datatypes and shapes; declare them in config.pbtxt, one "
        f"input for each argument of forward and one output for each tensor that it returns: {inputs} "
        'output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1 ] }; a program of torch.export does not need this'
    )


def input_names(config: ModelConfig) -> list[str]:
    """Return the names of all inputs of the program, including those of `batch_input`."""
    generated = [name for batch_input in config.batch_inputs for name in batch_input.targets]
    return [*(spec.name for spec in config.inputs), *generated]


def check_arguments(config: ModelConfig, arguments: Sequence[str], required: Sequence[str]) -> dict[str, str]:
    """Return the argument of `forward` of each input. Raises ConfigError if they do not match.

    `required` are the arguments without a default.
    """
    names = input_names(config)
    places = input_places(config.name, names, arguments)
    by_input = {name: arguments[place] for name, place in places.items()}
    if missing := [name for name in required if name not in by_input.values()]:
        raise ConfigError(
            f"unable to load model '{config.name}', configuration expects {len(names)} inputs, model provides "
            f"{len(required)}: forward({', '.join(arguments[:_MAX_SHOWN])}) lacks '{missing[0]}'"
        )
    return by_input


def check_exported(config: ModelConfig, signature: Signature, inputs: Mapping[str, int]) -> None:
    """Check a configuration against a program; errors have the configured names of its tensors. Raises ConfigError."""
    outputs = output_places(config.name, [spec.name for spec in config.outputs])
    names = {place: name for name, place in inputs.items()}, {place: name for name, place in outputs.items()}
    renamed = [
        tuple(replace(info, name=by_place.get(place, info.name)) for place, info in enumerate(infos))
        for by_place, infos in zip(names, (signature.inputs, signature.outputs), strict=True)
    ]
    check_signature(config, Signature(inputs=renamed[0], outputs=renamed[1]))
