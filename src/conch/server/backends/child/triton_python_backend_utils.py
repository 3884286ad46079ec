"""The module that a Triton Python model imports as `pb_utils`.

A model is a folder `<model>/<version>/model.py` with a class of this form:

    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config): ...  # optional: adds inputs, outputs, batching to a ModelConfig, returns it
        def initialize(self, args): ...        # optional: args are strings; args["model_config"] is JSON
        def execute(self, requests): ...       # returns one InferenceResponse for each request; may be `async def`
        def is_ready(self): ...                # optional: bool, at each readiness check
        def finalize(self): ...                # optional: at unload

A decoupled model answers through `request.get_response_sender()` and returns None from `execute`.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from conch_child.python import messages
from conch_child.python.api.arguments import CallSignature
from conch_child.python.api.datatypes import (
    TRITON_STRING_TO_NUMPY,
    deserialize_bytes_tensor,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from conch_child.python.api.errors import TritonError, TritonModelException
from conch_child.python.api.log import Logger
from conch_child.python.api.metrics import Metric, MetricFamily
from conch_child.python.api.model_config import ModelConfig
from conch_child.python.api.request import (
    MEMORY_CPU,
    MEMORY_GPU,
    REQUEST_RELEASE_ALL,
    REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    InferenceTrace,
    PreferredMemory,
)
from conch_child.python.api.responses import RESPONSE_COMPLETE_FINAL, InferenceResponse, InferenceResponseSender
from conch_child.python.api.session import current, failure
from conch_child.python.api.tensor import Tensor, named

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = RESPONSE_COMPLETE_FINAL
TRITONSERVER_REQUEST_RELEASE_ALL = REQUEST_RELEASE_ALL
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = REQUEST_RELEASE_RESCHEDULE
TRITONSERVER_MEMORY_CPU = MEMORY_CPU
TRITONSERVER_MEMORY_GPU = MEMORY_GPU

_LOAD = CallSignature("load_model", "(model_name: str, config: str = '', files: object = None) -> None")
_UNLOAD = CallSignature("unload_model", "(model_name: str, unload_dependents: bool = False) -> None")
_READY = CallSignature("is_model_ready", "(model_name: str, model_version: str = '') -> bool")


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Optional[Tensor]:
    """Return a request's input by name, None if missing."""
    return named(inference_request._inputs, name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Optional[Tensor]:
    """Return a response's output by name, None if missing."""
    return named(inference_response._tensors, name)


def get_input_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """Return an input's properties from `json.loads(args["model_config"])`, None if missing."""
    return next((tensor for tensor in model_config.get("input", ()) if tensor["name"] == name), None)


def get_output_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """Return an output's properties from `json.loads(args["model_config"])`, None if missing."""
    return next((tensor for tensor in model_config.get("output", ()) if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Dict[str, Any]) -> bool:
    """Return whether a configuration is that of a decoupled model."""
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def get_model_dir() -> str:
    """Return the path of the model's version folder."""
    return str(current().directory)


def load_model(model_name: str, config: str = "", files: Any = None) -> None:
    """Load or reload a model, and wait for it; only with `--model-control-mode=explicit`.

    `config` (JSON) and `files` ("file:<version>/<path>" → contents) replace those in the repository. Raises
    TritonModelException with the reason if it fails.
    """
    name, config = _LOAD.text("model_name", model_name), _LOAD.text("config", config)
    if files is not None and not isinstance(files, dict):
        text = "failed to load model '{}', files should be a dictionary of file paths and file contents"
        raise TritonModelException(text.format(name))
    _control("Failed to load model", messages.LOAD, name, config, files)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model, with `unload_dependents` an ensemble's steps, too. May return before its requests have ended.

    Raises TritonModelException with the reason if it fails.
    """
    dependents = _UNLOAD.flag("unload_dependents", unload_dependents)
    _control("Failed to unload model", messages.UNLOAD, _UNLOAD.text("model_name", model_name), dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model is ready; by default its newest version."""
    name, version = _READY.text("model_name", model_name), _READY.text("model_version", model_version)
    return bool(_control("Failed to check model readiness", messages.ASK, name, version))


def _control(operation: str, *message: Any) -> Any:
    error, value = current().calls.control(*message)
    if error is not None:
        raise failure(operation, error[1])
    return value
