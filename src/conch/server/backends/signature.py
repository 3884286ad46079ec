"""Completion and validation of a configuration by the inputs and outputs that the model file declares.

For frameworks whose model files hold names, datatypes and shapes. The rules and messages are those of Triton's
onnxruntime backend, but shapes need only be compatible, where Triton requires them to be equal.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from conch.base.errors import ConfigError
from conch.domain.files.signature import Signature, TensorInfo
from conch.domain.model_config import BatchInput, BatchInputKind, ModelConfig, TensorSpec
from conch.domain.triton_messages import config_datatype
from conch.server.backends.base import ModelSource
from conch.server.backends.parameters import whole_number


def default_max_batch_size(settings: Mapping[str, str]) -> int:
    """Return the setting `default-max-batch-size`, for models that support batching and have no `max_batch_size`.

    Raises ConfigError if it is not a whole number.
    """
    return whole_number(settings.get("default-max-batch-size", "4"), "default-max-batch-size")


def needs_completion(document: Mapping[str, Any]) -> bool:
    """Whether a configuration lacks its inputs or its outputs."""
    return not document.get("input") or not document.get("output")


async def completed(source: ModelSource, read: Callable[[ModelSource], Signature]) -> Mapping[str, Any]:
    """Return the completed document of a configuration, or the document itself if it has inputs and outputs.

    `read` is called in a thread, if needed. Raises what it raises, and ConfigError.
    """
    document = source.config.document
    if not needs_completion(document):
        return document
    default = default_max_batch_size(source.settings)
    return complete_document(document, await asyncio.to_thread(read, source), default)


def complete_document(document: Mapping[str, Any], signature: Signature, default_max_batch_size: int) -> dict[str, Any]:
    """Return a configuration with the missing inputs or outputs, and the batching that they allow.

    A model supports batching if the first dimension of all inputs and outputs is variable; it then gets
    `default_max_batch_size` if its configuration has none, and dynamic batching if it has no scheduler.
    Raises ConfigError if the configuration requires batching that the model does not support, or if an input or output
    has no datatype.
    """
    completed = dict(document)
    if _can_batch(signature) and not _states_batch_dimension(document, signature):
        completed["max_batch_size"] = document.get("max_batch_size") or max(default_max_batch_size, 0)
        schedulers = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
        if completed["max_batch_size"] > 1 and not any(name in document for name in schedulers):
            completed["dynamic_batching"] = {}
    elif document.get("max_batch_size"):
        raise ConfigError(
            f"autofill failed for model '{document['name']}': model does not support batching while non-zero "
            f"max_batch_size is specified ({document['max_batch_size']}); {_why_not(signature)}"
        )
    batching = completed.get("max_batch_size", 0) > 0
    internal = _sequence_tensors(document)
    for field, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        if not document.get(field):
            completed[field] = [
                _declaration(info, field, document["name"], batching=batching)
                for info in tensors
                if info.name not in internal
            ]
    return completed


def check_signature(config: ModelConfig, signature: Signature) -> None:
    """Raise ConfigError, which names both values, if configuration and model contradict each other."""
    required = {info.name: info for info in signature.inputs}
    inputs = required | {info.name: info for info in signature.optional_inputs}
    outputs = {info.name: info for info in signature.outputs}
    scattered = {name for output in config.batch_outputs for name in output.targets}
    for kind, specs, infos in (("input", config.inputs, inputs), ("output", config.outputs, outputs)):
        for spec in specs:
            info = infos.get(spec.name)
            if info is None:
                allowed = ", ".join(sorted(infos))
                raise ConfigError(
                    f"model '{config.name}': unexpected inference {kind} '{spec.name}', allowed {kind}s are: {allowed}"
                )
            _check_datatype(config.name, kind, spec, info)
            if kind == "input" and spec.name in config.ragged_inputs:
                _check_ragged(config.name, info)
            elif kind == "input" or spec.name not in scattered:
                _check_dims(config, kind, spec, info)
    for batch_input in config.batch_inputs:
        for name in batch_input.targets:
            _check_batch_input(config.name, batch_input, name, inputs)
    declared = {spec.name for spec in config.inputs} | {
        name for batch_input in config.batch_inputs for name in batch_input.targets
    }
    if missing := [name for name in required if name not in declared]:
        raise ConfigError(
            f"unable to load model '{config.name}', configuration expects {len(declared)} inputs, model provides "
            f"{len(required)}: the configuration lacks '{missing[0]}'"
        )


def _sequence_tensors(document: Mapping[str, Any]) -> set[str]:
    """Return the names of tensors that clients do not send or receive: controls and states of sequences."""
    batching = document.get("sequence_batching", {})
    states = batching.get("state", ())
    controls = {entry.get("name", "") for entry in batching.get("control_input", ())}
    return controls | {state.get(field, "") for state in states for field in ("input_name", "output_name")}


def _can_batch(signature: Signature) -> bool:
    return all(info.dims[:1] == (-1,) for info in (*signature.inputs, *signature.outputs))


def _why_not(signature: Signature) -> str:
    info = next(info for info in (*signature.inputs, *signature.outputs) if info.dims[:1] != (-1,))
    return f"the first dimension of '{info.name}' {list(info.dims)} is not variable"


def _states_batch_dimension(document: Mapping[str, Any], signature: Signature) -> bool:
    """Whether the configuration declares a full shape and no batching, so that the model must not batch."""
    ranks = {info.name: len(info.dims) for info in (*signature.inputs, *signature.outputs)}
    declared = [*document.get("input", ()), *document.get("output", ())]
    full = any(len(_shape(tensor)) == ranks.get(tensor["name"]) for tensor in declared)
    return full and not document.get("max_batch_size")


def _shape(tensor: Mapping[str, Any]) -> Sequence[int]:
    reshape = tensor.get("reshape")
    shape: Sequence[int] = tensor["dims"] if reshape is None else reshape["shape"]
    return shape


def _declaration(info: TensorInfo, kind: str, model: str, *, batching: bool) -> dict[str, Any]:
    if not info.datatype:
        raise ConfigError(f"autofill failed for model '{model}': {_no_tensor(info, kind)}")
    declaration: dict[str, Any] = {"name": info.name, "data_type": config_datatype(info.datatype)}
    dims = list(info.dims[1:] if batching else info.dims)
    declaration["dims"] = dims or [1]
    if not dims and batching:
        declaration["reshape"] = {"shape": []}
    return declaration


def _no_tensor(info: TensorInfo, kind: str) -> str:
    """Return the message for an input or output without a datatype, with the remedy."""
    problem = f"{kind} '{info.name}' is {info.native_type}, which cannot be sent as a tensor; "
    if info.native_type.startswith("seq(map("):
        return problem + (
            "it is the ZipMap of a scikit-learn classifier: convert the model with skl2onnx's "
            "options={'zipmap': False} (onnxmltools: zipmap=False), which gives a tensor"
        )
    return problem + f"declare the {kind}s to be served in config.pbtxt"


def _check_datatype(model: str, kind: str, spec: TensorSpec, info: TensorInfo) -> None:
    if not info.datatype:
        raise ConfigError(f"unable to load model '{model}': {_no_tensor(info, kind)}")
    if spec.datatype != info.datatype:
        provided = config_datatype(info.datatype)
        raise ConfigError(
            f"unable to load model '{model}', configuration expects datatype {config_datatype(spec.datatype)} for "
            f"{kind} '{spec.name}', model provides {provided}"
        )


def _check_ragged(model: str, info: TensorInfo) -> None:
    if info.dims != (-1,):
        raise ConfigError(
            f"unable to load model '{model}', input '{info.name}' has allow_ragged_batch, for which it must have one "
            f"dimension of any size ([-1]), model provides {list(info.dims)}"
        )


def _check_batch_input(model: str, spec: BatchInput, name: str, inputs: Mapping[str, TensorInfo]) -> None:
    info = inputs.get(name)
    label = f"unable to load model '{model}', batch_input '{name}' of kind BATCH_{spec.kind.value}"
    if info is None:
        raise ConfigError(f"{label} is not an input of the model, which has: {', '.join(sorted(inputs))}")
    if info.datatype != spec.datatype:
        raise ConfigError(f"{label} is {spec.datatype}, model provides {info.datatype or info.native_type}")
    rank = 2 if spec.kind is BatchInputKind.ITEM_SHAPE else 1
    if info.dims and len(info.dims) != rank:
        raise ConfigError(f"{label} has {rank} dimensions, model provides {list(info.dims)}")


def _check_dims(config: ModelConfig, kind: str, spec: TensorSpec, info: TensorInfo) -> None:
    label = f"model '{config.name}', tensor '{spec.name}'"
    dims = list(spec.dims if spec.reshape is None else spec.reshape)
    if not info.dims:
        # A scalar; or an output of dynamic rank.
        if kind == "input" and (any(dim != 1 for dim in dims) or config.max_batch_size > 0):
            raise ConfigError(f"{label}: the model expects a scalar but the model configuration specifies {dims}")
        return
    batch: list[int] = []
    if config.max_batch_size > 0:
        batch = [-1]
        # A batch dimension fixed to 1 fits every batch that max_batch_size: 1 allows.
        if info.dims[0] != -1 and not info.dims[0] == config.max_batch_size == 1:
            raise ConfigError(
                f"{label}: for the model to support batching the shape should have at least 1 dimension and the first "
                f"dimension must be -1; but shape expected by the model is {list(info.dims)}; "
                f"max_batch_size is {config.max_batch_size}, 0 would serve this shape"
            )
    full, expected = [*batch, *dims], list(info.dims)
    complete = (
        f" (an initial batch dimension because max_batch_size > 0 followed by {dims}, making complete shape {full})"
        if batch
        else ""
    )
    if len(full) != len(expected):
        raise ConfigError(
            f"{label}: the model expects {len(expected)} dimensions (shape {expected}) but the model configuration "
            f"specifies {len(full)} dimensions{complete or f' (shape {full})'}"
        )
    if any(-1 not in pair and pair[0] != pair[1] for pair in zip(full, expected, strict=True)):
        raise ConfigError(
            f"{label}: the model expects shape {expected} but the model configuration specifies shape {full}{complete}"
        )
