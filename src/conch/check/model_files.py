"""Versions and model files: there, readable, of the right name and kind, and in agreement with the configuration."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conch.backends.signature import check_signature, complete_document, default_max_batch_size, needs_completion
from conch.check import repository_rules as rules
from conch.check.configs import is_known, named_gpus
from conch.check.finding import Finding, Place
from conch.check.language_models import ENGINES, check_language_model
from conch.check.model import CheckedModel
from conch.check.onnx_file import NotOnnx, OnnxFile, read_onnx
from conch.check.readable import check_readable
from conch.errors import ConfigError, ModelLoadError
from conch.model_config import VersionPolicyKind
from conch.repository.finish import finish
from conch.repository.versions import chosen_versions

_READ_ELSEWHERE = ("python", "identity")  # by other rules, or nothing is there to be read
_ENVIRONMENT = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


def check_files(model: CheckedModel) -> tuple[CheckedModel, list[Finding]]:
    """Check versions and files; return the model, completed from its file if that could be read, and what is wrong."""
    findings = list(_version_names(model))
    try:
        versions = chosen_versions(model.config, model.files.versions_on_disk, model.directory)
    except ModelLoadError as error:
        return model, [*findings, Finding(rules.VERSION_NONE, model.folder.locate(error.message), error.message)]
    findings += _absent_versions(model)
    if model.config.is_ensemble:
        return model, findings
    findings += _environment(model)
    if model.config.backend in ENGINES:
        model, wrong = check_language_model(model, versions)
        return model, [*findings, *wrong]
    for version in versions:
        path = model.directory / str(version) / model.config.default_model_filename
        named = bool(model.config.default_model_filename) and model.config.backend != "identity"
        wrong = list(check_readable(model, path)) if named else []
        findings += wrong
        if wrong or model.config.backend in _READ_ELSEWHERE or not is_known(model.config.backend):
            continue
        if named and model.config.backend in ("onnxruntime", "openvino") and path.suffix == ".onnx":
            model, wrong = _check_onnx(model, path / "model.onnx" if path.is_dir() else path)
            findings += wrong
        else:
            said = f"what is inside {path.name} of model '{model.name}' was not checked: needs backend "
            findings.append(Finding(rules.MODEL_UNREAD, Place(path), f"{said}'{model.config.backend}', started"))
    return model, findings


def _version_names(model: CheckedModel) -> Iterator[Finding]:
    known = set(map(str, model.files.versions_on_disk))
    for path in sorted(model.directory.iterdir()):
        digits = path.name.lower().removeprefix("version").lstrip("v_-")
        if path.is_dir() and path.name not in known and digits.isdecimal():
            cure = f"Rename it to '{int(digits)}'." if int(digits) else "Version numbers begin with 1."
            yield Finding(rules.VERSION_NAME, Place(path), f"'{path.name}' is no version", cure)


def _absent_versions(model: CheckedModel) -> Iterator[Finding]:
    policy = model.config.version_policy
    if policy.kind is VersionPolicyKind.SPECIFIC:
        for version in policy.versions:
            if version not in model.files.versions_on_disk:
                there = ", ".join(map(str, model.files.versions_on_disk))
                said = f"version_policy names version {version} of model '{model.name}', there are: {there}"
                yield Finding(rules.VERSION_ABSENT, model.folder.locate(said), said)


def _environment(model: CheckedModel) -> Iterator[Finding]:
    """A Python model's own environment, unless it lies where only the server's machine can tell."""
    path = model.config.parameters.get(_ENVIRONMENT, "")
    if path.startswith(_MODEL_DIRECTORY):
        resolved = model.directory / path.removeprefix(_MODEL_DIRECTORY).lstrip("/")
        if not resolved.exists():
            said = f"{_ENVIRONMENT} of model '{model.name}' names '{path}', there is no {resolved}"
            yield Finding(rules.FILE_MISSING, model.folder.locate(f"'{_ENVIRONMENT}'"), said)


def _check_onnx(model: CheckedModel, path: Path) -> tuple[CheckedModel, list[Finding]]:
    try:
        onnx = read_onnx(path)
    except NotOnnx as error:
        said = f"{path.name} of model '{model.name}' is no ONNX model: {error}"
        return model, [Finding(rules.FILE_DAMAGED, Place(path), said)]
    missing = [name for name in onnx.external if not (path.parent / name).is_file()]
    if missing:
        said = f"{path.name} of model '{model.name}' keeps weights in '{missing[0]}', which is not beside it"
        return model, [Finding(rules.FILE_MISSING, Place(path), said)]
    document: Mapping[str, Any] = model.files.document
    if not onnx.shaped and needs_completion(document):
        said = (
            f"outputs of model '{model.name}' were not checked: {path.name} gives no shape; needs onnxruntime, started"
        )
        return model, [Finding(rules.MODEL_UNREAD, Place(path), said)]
    return _held_against(model, onnx, document)


def _held_against(
    model: CheckedModel, onnx: OnnxFile, document: Mapping[str, Any]
) -> tuple[CheckedModel, list[Finding]]:
    """Complete the configuration as the server would, and compare the two as the server does."""
    try:
        if needs_completion(document):
            document = complete_document(document, onnx.signature, default_max_batch_size({}))
        config = finish(document, backend=None, gpus=named_gpus(model.files)).config
        check_signature(config, onnx.signature)
    except ConfigError as error:
        return model, [Finding(rules.MODEL_SIGNATURE, model.folder.locate(error.message), error.message)]
    return model.completed(config), []
