"""Validation rules of a configuration that need no other model.

Messages begin with Triton's text, which clients match, and continue with the field. `validate_configuration` is for the
file as it is read (Triton checks these rules while polling); `validate_tensors` is for the configuration after
auto-completion (Triton checks these while loading).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import isfinite, prod
from pathlib import PurePosixPath
from typing import Any

from conch.base.errors import ConfigError
from conch.domain.config.validate_batch import validate_batch_tensors
from conch.domain.config.validate_ensemble import validate_ensemble
from conch.domain.config.validate_sequence import validate_sequence_batching
from conch.domain.model_config import ENSEMBLE_PLATFORM
from conch.domain.statistics.model_statistics import DEFAULT_BUCKETS
from conch.domain.triton_messages import ModelConfig as ConfigMessage
from conch.domain.triton_messages import ModelInput, ModelInstanceGroup, ModelQueuePolicy

# Each bucket is a series of the model.
_MAX_BUCKETS = 100
_TENSORRT = "tensorrt_plan"


def validate_configuration(message: ConfigMessage) -> None:
    """Check the rules that do not depend on inputs and outputs. Raises ConfigError for the first broken rule."""
    name = message.name
    if message.platform == ENSEMBLE_PLATFORM and message.backend:
        raise ConfigError(
            f"Ensemble model '{name}' must have platform type '{ENSEMBLE_PLATFORM}' and empty backend type, "
            f"backend is '{message.backend}'"
        )
    if message.max_batch_size < 0:
        raise ConfigError(
            f"'max_batch_size' must be non-negative value for {name}, it is {message.max_batch_size}; "
            "0 means that the model does not batch"
        )
    _validate_batching(message)
    _validate_cache(message)
    validate_sequence_batching(message)
    validate_ensemble(message)
    for warmup in message.model_warmup:
        _validate_warmup(warmup, name)
    _validate_metrics(message.model_metrics, name)
    _validate_filename(message.default_model_filename, "default_model_filename", name)
    for capability, filename in message.cc_model_filenames.items():
        _validate_filename(filename, f"cc_model_filenames['{capability}']", name)


def validate_tensors(message: ConfigMessage) -> None:
    """Check inputs, outputs and instance groups of a completed configuration. Raises ConfigError."""
    for field, tensors in (("input", message.input), ("output", message.output)):
        for index, tensor in enumerate(tensors):
            _validate_tensor(tensor, f"{field}[{index}]", message)
    repeated = [name for name, count in Counter(tensor.name for tensor in message.input).items() if count > 1]
    if repeated:
        raise ConfigError(f"input '{repeated[0]}' of {message.name} is declared more than once")
    validate_batch_tensors(message)
    for group in message.instance_group:
        _validate_instance_group(group, message)


def _validate_filename(filename: str, field: str, name: str) -> None:
    path = PurePosixPath(filename)
    if path.is_absolute() or ".." in path.parts or "\0" in filename:
        raise ConfigError(f"{field} '{filename}' of {name} leads out of its folder")


def _validate_batching(message: ConfigMessage) -> None:
    if not message.HasField("dynamic_batching"):
        return
    batching, name = message.dynamic_batching, message.name
    for index, size in enumerate(batching.preferred_batch_size):
        at = f"dynamic_batching.preferred_batch_size[{index}] is {size}"
        if size <= 0:
            raise ConfigError(f"dynamic batching preferred size must be positive for {name}: {at}")
        if size > message.max_batch_size:
            raise ConfigError(
                f"dynamic batching preferred size must be <= max batch size for {name}: "
                f"{at}, max_batch_size is {message.max_batch_size}"
            )
    _validate_priorities(batching, name)
    if batching.preserve_ordering:
        _validate_ordering(batching, name)


def _validate_cache(message: ConfigMessage) -> None:
    if not message.response_cache.enable:
        return
    for there, what in (
        (message.HasField("sequence_batching"), "sequence batching scheduler"),
        (message.model_transaction_policy.decoupled, "'decoupled' transaction policy"),
    ):
        if there:
            raise ConfigError(
                f"Response Cache does not currently support model {message.name} with {what}. "
                "Please disable the response cache."
            )


def _validate_priorities(batching: Any, name: str) -> None:
    levels = batching.priority_levels
    if levels == 0:
        return
    default = batching.default_priority_level
    if not 1 <= default <= levels:
        raise ConfigError(
            f"default priority level must be in range [1, {levels}] for {name}: "
            f"dynamic_batching.default_priority_level is {default}"
        )
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            raise ConfigError(
                f"priority queue policy must have priority level in range [1, {levels}] for {name}: "
                f"dynamic_batching.priority_queue_policy has the key {level}"
            )


def _validate_ordering(batching: Any, name: str) -> None:
    if batching.priority_levels > 1:
        raise ConfigError(
            f"Only one priority level is allowed when 'preserve_ordering' is true for {name}: "
            f"dynamic_batching.priority_levels is {batching.priority_levels}"
        )
    policies = {"default_queue_policy": batching.default_queue_policy} | {
        f"priority_queue_policy[{level}]": policy for level, policy in batching.priority_queue_policy.items()
    }
    for field, policy in policies.items():
        if policy.default_timeout_microseconds and policy.timeout_action == ModelQueuePolicy.DELAY:
            raise ConfigError(
                f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {name}: "
                f"dynamic_batching.{field}"
            )


def _validate_warmup(warmup: Any, name: str) -> None:
    at = f"model_warmup '{warmup.name}' of {name}"
    if warmup.batch_size < 1:
        raise ConfigError(f"{at}: batch_size must be >= 1, it is {warmup.batch_size}")
    for key, tensor in warmup.inputs.items():
        if tensor.WhichOneof("input_data_type") is None:
            raise ConfigError(f"{at}: input '{key}' must specify zero_data, random_data or input_data_file")
        if any(dim < 1 for dim in tensor.dims):
            raise ConfigError(f"{at}: dims of input '{key}' must be integers >= 1, they are {list(tensor.dims)}")


def _validate_metrics(metrics: Any, name: str) -> None:
    for index, control in enumerate(metrics.metric_control):
        at = f"for {name}: model_metrics.metric_control[{index}]"
        if not control.HasField("metric_identifier"):
            raise ConfigError(f"metric control must specify 'metric_identifier' {at}")
        if not control.metric_identifier.family:
            raise ConfigError(f"metric identifier must specify non-empty 'family' {at}")
        if not control.HasField("histogram_options"):
            raise ConfigError(f"metric control must specify 'histogram_options' {at}")
        if not control.histogram_options.buckets:
            raise ConfigError(f"histogram options must specify non-empty 'buckets' {at}")
        _validate_buckets(control.metric_identifier.family, control.histogram_options.buckets, at)


def _validate_buckets(family: str, buckets: Sequence[float], at: str) -> None:
    if family not in DEFAULT_BUCKETS:
        known = ", ".join(DEFAULT_BUCKETS)
        raise ConfigError(f"family '{family}' has no buckets to configure {at}; those that have are {known}")
    if len(buckets) > _MAX_BUCKETS:
        raise ConfigError(f"histogram options specify {len(buckets)} 'buckets' {at}; the limit is {_MAX_BUCKETS}")
    if not all(map(isfinite, buckets)) or any(bound <= below for below, bound in pairwise((0.0, *buckets))):
        raise ConfigError(f"'buckets' must be finite, positive and ascending {at}; they are {list(buckets)}")


def _validate_tensor(tensor: Any, at: str, message: ConfigMessage) -> None:
    kind = "input" if isinstance(tensor, ModelInput) else "output"
    where = f"for {message.name}: {at}"
    if not tensor.name:
        raise ConfigError(f"model {kind} must specify 'name' {where}")
    subject = f"model {kind} '{tensor.name}'"
    if not tensor.data_type:
        raise ConfigError(f"{subject} must specify 'data_type' {where}")
    if not tensor.dims:
        raise ConfigError(f"{subject} must specify 'dims' {where}")
    _validate_dims(tensor.dims, f"{subject} dimension", f"{where}.dims")
    if tensor.HasField("reshape"):
        _validate_reshape(tensor, subject, where, batching=message.max_batch_size > 0)
    if tensor.is_shape_tensor and message.platform != _TENSORRT:
        raise ConfigError(f"shape tensors are only supported for TensorRT platform {where}.is_shape_tensor")
    if tensor.is_non_linear_format_io and message.platform != _TENSORRT:
        raise ConfigError(
            f"Non-linear IO format is only supported for the TensorRT platform {where}.is_non_linear_format_io"
        )
    if kind == "input" and tensor.format != ModelInput.FORMAT_NONE and len(tensor.dims) != 3:
        raise ConfigError(f"model input NHWC/NCHW require 3 dims {where} has {len(tensor.dims)}, without the batch")


def _validate_dims(dims: Sequence[int], what: str, where: str) -> None:
    for index, dim in enumerate(dims):
        if dim < 1 and dim != -1:
            raise ConfigError(
                f"{what} must be integer >= 1, or -1 to indicate a variable-size dimension {where}[{index}] is {dim}"
            )


def _validate_reshape(tensor: Any, subject: str, where: str, *, batching: bool) -> None:
    dims, shape = list(tensor.dims), list(tensor.reshape.shape)
    if not shape and not batching:
        raise ConfigError(
            f"{subject} cannot have empty reshape for non-batching model as scalar tensors are not supported {where}"
        )
    _validate_dims(shape, f"{subject} reshape dimensions", f"{where}.reshape.shape")
    sides = f"{where}.dims is {dims}, reshape.shape is {shape}"
    if (-1 in dims) != (-1 in shape):
        raise ConfigError(f"{subject} has different size for dims and reshape {sides}")
    if dims.count(-1) != shape.count(-1):
        raise ConfigError(f"{subject} has different number of variable-size dimensions for dims and reshape {sides}")
    if _element_counts(dims) != _element_counts(shape):
        raise ConfigError(f"{subject} has different size for dims and reshape {sides}")


def _element_counts(dims: Iterable[int]) -> list[int]:
    """Return the element counts of the runs of fixed dimensions between the variable ones: [2, 4, -1, 6] → [8, 6]."""
    runs: list[list[int]] = [[]]
    for dim in dims:
        if dim == -1:
            runs.append([])
        else:
            runs[-1].append(dim)
    return [prod(run) for run in runs]


def _validate_instance_group(group: Any, message: ConfigMessage) -> None:
    subject = f"instance group {group.name} of model {message.name}"
    if group.kind in (ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_MODEL) and group.gpus:
        kind = ModelInstanceGroup.Kind.Name(group.kind)
        raise ConfigError(f"{subject} has kind {kind} but specifies one or more GPUs: {list(group.gpus)}")
    if group.profile and message.platform != _TENSORRT:
        raise ConfigError(
            f"{subject} and platform {message.platform} specifies profile field which is only supported for "
            "TensorRT models"
        )
