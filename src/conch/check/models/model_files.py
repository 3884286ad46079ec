"""Check versions, model files and label files: existence, names, format, and agreement with the configuration."""

from collections.abc import Iterator
from math import prod
from pathlib import Path

from conch.base.errors import ModelLoadError
from conch.check.finding import Edit, Finding, Place
from conch.check.models.checked_model import CheckedModel
from conch.check.models.config import is_known
from conch.check.models.framework_files import check_contents, check_readable, unread
from conch.check.models.language_models import ENGINES, check_language_model
from conch.check.source import SourceFile
from conch.domain.files.model_folder import chosen_versions, read_labels
from conch.domain.model_config import VersionPolicyKind
from conch.server.backends.pytorch.files import MODEL_FILE

_NO_FRAMEWORK_FILES = ("python", "identity")  # Python code has its own rules; identity has no files
_ENVIRONMENT = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


def check_files(model: CheckedModel) -> tuple[CheckedModel, list[Finding]]:
    """Check versions and files; return the model, completed from its file if that is readable, and the findings."""
    findings = list(_version_names(model))
    try:
        versions = chosen_versions(model.config, model.files.versions_on_disk, model.directory)
    except ModelLoadError as error:
        return model, [*findings, Finding("version-none", model.folder.locate(error.message), error.message)]
    findings += _absent_versions(model)
    if model.config.is_ensemble:
        return model, findings
    findings += _environment(model)
    findings += _warmup_files(model)
    findings += _native_extensions(model)
    if model.config.backend in ENGINES:
        model, wrong = check_language_model(model, versions)
        return model, [*findings, *wrong]
    for version in versions:
        path = model.directory / str(version) / model.config.default_model_filename
        named = bool(model.config.default_model_filename) and model.config.backend != "identity"
        wrong = list(check_readable(model, path)) if named else []
        if wrong and not path.exists() and _has_exported_program(model.config.backend, path):
            wrong = []
        findings += wrong
        if wrong or model.config.backend in _NO_FRAMEWORK_FILES or not is_known(model.config.backend):
            continue
        checked = check_contents(model, version, path)
        if checked is None:
            findings.append(unread(path, model, model.config.backend))
        else:
            model, wrong = checked
            findings += wrong
    return model, findings


def _has_exported_program(backend: str, path: Path) -> bool:
    """Whether the server would load a `model.pt2` of torch.export instead of a missing `model.pt`."""
    return backend == "pytorch" and path.name == MODEL_FILE and path.with_suffix(".pt2").is_file()


def _version_names(model: CheckedModel) -> Iterator[Finding]:
    known = set(map(str, model.files.versions_on_disk))
    for path in sorted(model.directory.iterdir()):
        digits = path.name.lower().removeprefix("version").lstrip("v_-")
        if path.is_dir() and path.name not in known and digits.isdecimal():
            cure = f"Rename it to '{int(digits)}'." if int(digits) else "Version numbers begin with 1."
            yield Finding("version-name", Place(path), f"'{path.name}' is not a valid version", cure)


def _absent_versions(model: CheckedModel) -> Iterator[Finding]:
    policy = model.config.version_policy
    if policy.kind is VersionPolicyKind.SPECIFIC:
        for version in policy.versions:
            if version not in model.files.versions_on_disk:
                present = ", ".join(map(str, model.files.versions_on_disk))
                message = (
                    f"version_policy names version {version} of model '{model.name}', which does not exist; "
                    f"found: {present}"
                )
                yield Finding("version-absent", model.folder.locate(message), message)


def _warmup_files(model: CheckedModel) -> Iterator[Finding]:
    """Check that the data files of warm-up requests exist in the model's folder `warmup`."""
    for warmup in model.config.warmups:
        for spec in warmup.inputs:
            path = model.directory / "warmup" / spec.filename
            if spec.filename and not path.is_file():
                message = f"input '{spec.name}' of model_warmup '{warmup.name}' needs {path}, which does not exist"
                yield Finding("file-missing", model.folder.locate(f"'{spec.filename}'"), message)


def _native_extensions(model: CheckedModel) -> Iterator[Finding]:
    """Find libraries that the server loads into its process only with --allow-native-extensions=true."""
    config, named = model.config, []
    if config.backend == "onnxruntime":
        libraries = config.document.get("model_operations", {}).get("op_library_filename", [])
        named = [("op_library_filename", filename) for filename in libraries]
    elif config.backend == "openvino" and config.parameters.get("CPU_EXTENSION_PATH"):
        named = [("CPU_EXTENSION_PATH", config.parameters["CPU_EXTENSION_PATH"])]
    for field, filename in named:
        message = (
            f"{field} of model '{model.name}' names '{filename}', native code that requires "
            "--allow-native-extensions=true"
        )
        yield Finding("native-extension", model.folder.locate(f"'{field}'"), message)


def _environment(model: CheckedModel) -> Iterator[Finding]:
    """Check that a Python model's environment exists, if it lies in the model's folder."""
    path = model.config.parameters.get(_ENVIRONMENT, "")
    if path.startswith(_MODEL_DIRECTORY):
        resolved = model.directory / path.removeprefix(_MODEL_DIRECTORY).lstrip("/")
        if not resolved.exists():
            message = f"{_ENVIRONMENT} of model '{model.name}' names '{path}', but {resolved} does not exist"
            yield Finding("file-missing", model.folder.locate(f"'{_ENVIRONMENT}'"), message)


def check_labels(model: CheckedModel) -> Iterator[Finding]:
    """Check the label files of all outputs."""
    try:
        labels = read_labels(model.config, model.directory)
    except ModelLoadError as error:
        yield Finding("label-file", model.folder.locate(error.message), error.message)
        return
    for index, output in enumerate(model.config.outputs):
        if output.name not in labels:
            continue
        path = model.directory / output.label_filename
        count, classes = len(labels[output.name]), prod(output.dims)
        if -1 not in output.dims and count != classes:
            message = (
                f"{path.name} has {count} labels, but output '{output.name}' of model '{model.name}' has {classes} "
                "classes"
            )
            yield Finding("label-count", model.folder.field(f"output[{index}].label_filename"), message)
        source = SourceFile.read(path)
        if source and "\r\n" in source.text:
            edits = tuple(
                Edit(at, at + 1, "") for at, mark in enumerate(source.text) if source.text[at : at + 2] == "\r\n"
            )
            yield Finding("label-line-ends", Place(path, 1, 1), f"lines of {path.name} end in CR LF", edits=edits)
