"""Determine the backend of a model from its platform, model file name or files, if the configuration names none.

The order of the formats is Triton's; the first match counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from conch.base.errors import ConfigError
from conch.domain.files.model_folder import unknown_format
from conch.domain.model_config import ENSEMBLE_PLATFORM
from conch.domain.triton_messages import ModelConfig as ConfigMessage


@dataclass(frozen=True, slots=True)
class _Format:
    backend: str
    platform: str  # "" if Triton has no platform name for the backend
    filename: str
    is_directory: bool | None  # None: a file or a directory
    is_served: bool = True  # by this server; formats that are not served are listed for error messages


_FORMATS = (
    _Format("tensorflow", "tensorflow_savedmodel", "model.savedmodel", is_directory=True, is_served=False),
    _Format("tensorflow", "tensorflow_graphdef", "model.graphdef", is_directory=False, is_served=False),
    _Format("tensorrt", "tensorrt_plan", "model.plan", is_directory=False),
    _Format("onnxruntime", "onnxruntime_onnx", "model.onnx", is_directory=None),
    _Format("openvino", "", "model.xml", is_directory=None),
    _Format("pytorch", "pytorch_libtorch", "model.pt", is_directory=False),
    _Format("pytorch", "torch_aoti", "model.pt2", is_directory=False),
    _Format("python", "", "model.py", is_directory=None),
)


_MAX_NAMES = 20


def fill_backend_fields(message: ConfigMessage, name: str, version_files: Mapping[str, bool]) -> None:
    """Fill `backend`, `platform` and `default_model_filename` of model `name` from each other.

    `version_files` are the entries of the lowest version directory: name → whether it is a directory. They are used
    only if the configuration has none of the three fields. Raises ConfigError if the backend cannot be determined, or
    if backend and platform do not match.
    """
    if message.platform == ENSEMBLE_PLATFORM or message.HasField("ensemble_scheduling"):
        return
    model_format = _format_of(message, version_files)
    if model_format is None and not message.backend:
        _fill_from_model_name(message, name, version_files)
        return
    if model_format is not None:
        _check_pair(message, model_format)
        message.backend = model_format.backend
        message.platform = message.platform or model_format.platform
        message.default_model_filename = message.default_model_filename or model_format.filename


def _format_of(message: ConfigMessage, version_files: Mapping[str, bool]) -> _Format | None:
    if message.backend:
        candidates = [form for form in _FORMATS if form.backend == message.backend]
        by_platform = [form for form in candidates if form.platform == message.platform]
        return next(iter(by_platform or candidates), None)
    if message.platform:
        return next((form for form in _FORMATS if form.platform == message.platform), None)
    if message.default_model_filename:
        return next((form for form in _FORMATS if form.filename == message.default_model_filename), None)
    return next((form for form in _FORMATS if _is_there(form, version_files)), None)


def _is_there(form: _Format, version_files: Mapping[str, bool]) -> bool:
    is_directory = version_files.get(form.filename)
    return is_directory is not None and form.is_directory in (None, is_directory)


def _check_pair(message: ConfigMessage, model_format: _Format) -> None:
    # A backend without a platform name accepts any platform, as in Triton.
    if model_format.platform and message.platform and message.platform != model_format.platform:
        raise ConfigError(
            f"unexpected 'platform' and 'backend' pair, got:{message.platform}, {message.backend}; "
            f"backend '{model_format.backend}' needs platform '{model_format.platform}'"
        )


def _fill_from_model_name(message: ConfigMessage, name: str, version_files: Mapping[str, bool]) -> None:
    if message.platform:
        known = ", ".join(form.platform for form in _FORMATS if form.platform and form.is_served)
        raise ConfigError(
            f"unexpected platform type '{message.platform}' for {name}; known: {known}, {ENSEMBLE_PLATFORM}"
        )
    backend = name.partition(".")[2]
    if not backend or message.default_model_filename:
        expected = ", ".join(form.filename for form in _FORMATS if form.is_served)
        hint = unknown_format(version_files) if not message.default_model_filename else ""
        present = ", ".join(sorted(version_files)[:_MAX_NAMES]) or "nothing"
        raise ConfigError(
            f"Invalid model name: Could not determine backend for model '{name}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>', a 'backend' in config.pbtxt, or "
            f"one of {expected} in the version directory, which contains {present}.{hint and ' ' + hint}"
        )
    message.backend = backend
    message.default_model_filename = f"model.{backend}"
