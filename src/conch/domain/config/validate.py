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
from conch.domain.config.from_proto import BOOLEAN_FORMS, control_kind
from conch.domain.model_config import ENSEMBLE_PLATFORM, ControlKind
from conch.domain.statistics.model_statistics import DEFAULT_BUCKETS
from conch.domain.triton_messages import ModelConfig as ConfigMessage
from conch.domain.triton_messages import ModelInput, ModelInstanceGroup, ModelQueuePolicy, datatype_name
from conch.domain.triton_messages import model_config_pb2 as schema

# Each bucket is a series of the model.
_MAX_BUCKETS = 100
_TENSORRT = "tensorrt_plan"
_DATATYPES = (schema.TYPE_INT32, schema.TYPE_FP32)
_ID_DATATYPES = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")
_FORMS = "'int32_false_true', 'fp32_false_true' {} 'bool_false_true'"


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
    for state in message.sequence_batching.state:
        if state.initial_state:
            _validate_initial_state(state, message.name)
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
    if warmup.batch_size == 0:  # skipped, with a notice
        return
    for key, tensor in warmup.inputs.items():
        if not tensor.data_type:
            raise ConfigError(f"{at}: input '{key}' must specify 'data_type'")
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


def validate_batch_tensors(message: ConfigMessage) -> None:
    """Check both fields in a completed configuration. Raises ConfigError for the first broken rule."""
    inputs = {spec.name for spec in message.input}
    outputs = {spec.name for spec in message.output}
    targets: set[str] = set()
    for index, tensor in enumerate(message.batch_input):
        where = f"for {message.name}: batch_input[{index}]"
        _validate_source(tensor, "input", schema.BatchInput.Kind, inputs, where)
        if tensor.data_type not in _DATATYPES:
            raise ConfigError(f"batch input data type must be TYPE_INT32 or TYPE_FP32 {where}")
        for name in _targets(tensor, "input", where):
            if name in inputs | targets:
                raise ConfigError(f"batch input '{name}' is created by the server; the name is used elsewhere {where}")
            targets.add(name)
    targets.clear()
    for index, tensor in enumerate(message.batch_output):
        where = f"for {message.name}: batch_output[{index}]"
        _validate_source(tensor, "output", schema.BatchOutput.Kind, inputs, where)
        for name in _targets(tensor, "output", where):
            if name not in outputs:
                raise ConfigError(f"unknown target output name '{name}' {where}; known: {_list(outputs)}")
            if name in targets:
                raise ConfigError(f"target output name '{name}' can only be specified once {where}")
            targets.add(name)


def _validate_source(tensor: Any, side: str, kinds: Any, inputs: set[str], where: str) -> None:
    if len(tensor.source_input) != 1:
        kind = kinds.Name(tensor.kind) if tensor.kind in kinds.values() else tensor.kind
        raise ConfigError(f"batch {side} kind '{kind}' expects 1 source input, got {len(tensor.source_input)} {where}")
    if tensor.source_input[0] not in inputs:
        raise ConfigError(f"unknown source input name '{tensor.source_input[0]}' {where}; known: {_list(inputs)}")


def _targets(tensor: Any, side: str, where: str) -> list[str]:
    if not tensor.target_name:
        raise ConfigError(f"batch {side} must specify 'target_name' {where}")
    return list(tensor.target_name)


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))


def validate_ensemble(message: ConfigMessage) -> None:
    """Check an ensemble without its models. Raises ConfigError for the first broken rule."""
    name, is_ensemble = message.name, message.platform == ENSEMBLE_PLATFORM
    if message.HasField("ensemble_scheduling") != is_ensemble:
        raise ConfigError(
            f"ensemble scheduling must be set for ensemble {name} whose platform is {ENSEMBLE_PLATFORM}"
            if is_ensemble
            else f"ensemble scheduling cannot be set for model '{name}' whose platform is not {ENSEMBLE_PLATFORM}; "
            f'add `platform: "{ENSEMBLE_PLATFORM}"`'
        )
    if not is_ensemble:
        return
    if message.instance_group:
        raise ConfigError(f"instance group should not be specified for ensemble '{name}'")
    if message.HasField("optimization"):
        raise ConfigError(f"optimization should not be specified for ensemble '{name}'")
    if message.model_warmup:
        raise ConfigError(f"model_warmup can not be specified for ensemble '{name}'")
    steps = message.ensemble_scheduling.step
    if not steps:
        raise ConfigError(f"must specify 'step' for ensemble '{name}'")
    for index, step in enumerate(steps):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                raise ConfigError(f"must specify '{field}' in step {index} of ensemble '{name}'")
    _validate_flow(message)


def _validate_flow(message: ConfigMessage) -> None:
    name, steps = message.name, message.ensemble_scheduling.step
    inputs = {tensor.name for tensor in message.input}
    outputs = {tensor.name for tensor in message.output}
    writers = _writers(message, inputs)
    read = {tensor for step in steps for tensor in step.input_map.values()}
    for tensor in sorted(inputs - read):
        raise ConfigError(
            f"ensemble input '{tensor}' for ensemble {name}' is not used: no step has it in its input_map"
        )
    for tensor in sorted(outputs - writers.keys() - inputs):
        raise ConfigError(f"ensemble output '{tensor}' for ensemble {name}' is not used: no step writes it")
    for index, step in enumerate(steps):
        for tensor in sorted(set(step.input_map.values()) - inputs - writers.keys()):
            raise ConfigError(
                f"ensemble tensor '{tensor}' of ensemble '{name}' is read by step {index} ('{step.model_name}'), but "
                "it is not an input of the ensemble and no step writes it"
            )
    for tensor in sorted(writers.keys() - read - outputs):
        raise ConfigError(
            f"ensemble tensor '{tensor}' is unused in ensemble '{name}': step {writers[tensor]} "
            f"('{steps[writers[tensor]].model_name}') writes it, nothing reads it; remove it from the output_map"
        )
    _validate_order(name, steps, inputs)


def _writers(message: ConfigMessage, inputs: set[str]) -> dict[str, int]:
    """Return the step that writes each tensor. Raises ConfigError for a tensor with two writers."""
    writers: dict[str, int] = {}
    for index, step in enumerate(message.ensemble_scheduling.step):
        for tensor in step.output_map.values():
            if tensor in writers:
                raise ConfigError(
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{message.name}' "
                    f"step {index}: step {writers[tensor]} writes it too"
                )
            if tensor in inputs:
                raise ConfigError(
                    f"ensemble tensor '{tensor}' is an input of ensemble '{message.name}', step {index} writes it too"
                )
            writers[tensor] = index
    return writers


def _validate_order(name: str, steps: Any, inputs: set[str]) -> None:
    """Raise ConfigError for a cycle: simulate the graph; a step that never gets all its inputs waits for itself."""
    missing = [set(step.input_map.values()) - inputs for step in steps]
    readers: dict[str, list[int]] = {}
    for index, tensors in enumerate(missing):
        for tensor in tensors:
            readers.setdefault(tensor, []).append(index)
    ready = [index for index, tensors in enumerate(missing) if not tensors]
    waiting = dict(enumerate(steps))
    while ready:
        for tensor in waiting.pop(ready.pop()).output_map.values():
            for index in readers.get(tensor, ()):
                missing[index].discard(tensor)
                if not missing[index]:
                    ready.append(index)
    if waiting:
        cycle = ", ".join(f"{index} ('{step.model_name}')" for index, step in waiting.items())
        raise ConfigError(f"circular dependency in ensemble '{name}': the steps {cycle} wait for each other's outputs")


def validate_sequence_batching(message: ConfigMessage) -> None:
    """Check a model's `sequence_batching`, if it has one. Raises ConfigError for the first broken rule."""
    if not message.HasField("sequence_batching"):
        return
    batching, name = message.sequence_batching, message.name
    _validate_controls(batching, name)
    _validate_strategy(batching, message)
    for state in batching.state:
        _validate_state(state, name)
    _validate_names(batching, message)


def _validate_controls(batching: Any, name: str) -> None:
    seen: set[ControlKind] = set()
    for entry in batching.control_input:
        if not entry.name:
            raise ConfigError(f"sequence batching control tensor must have a name for {name}")
        if len(entry.control) > 1:
            raise _specified_twice(entry.name, name)
        for control in entry.control:
            kind = control_kind(control)
            if kind in seen:
                raise ConfigError(f"sequence batching specifies multiple {kind.value} tensors for {name}")
            seen.add(kind)
            _validate_control(control, kind, f"{kind.value} for {name}", f"control_input '{entry.name}'")


def _validate_control(control: Any, kind: ControlKind, what: str, entry: str) -> None:
    where = f"for {what}: {entry}"
    given = [field for field in BOOLEAN_FORMS if getattr(control, field)]
    if kind is ControlKind.CORRID:
        if given:
            raise ConfigError(f"sequence batching must not specify either {_FORMS.format('or')} {where}")
        if datatype_name(control.data_type) not in _ID_DATATYPES:
            raise ConfigError(
                f"unexpected data type for control {what}. Allowed data types are TYPE_UINT64, TYPE_INT64, "
                f"TYPE_UINT32, TYPE_INT32 and TYPE_STRING: {entry}"
            )
        return
    if not given:
        raise ConfigError(f"sequence batching must specify either {_FORMS.format('or')} {where}")
    if len(given) > 1:
        raise ConfigError(f"sequence batching specifies more than one from {_FORMS.format('and')} {where}")
    if len(getattr(control, given[0])) != 2:
        raise ConfigError(f"sequence batching control '{given[0]}' must have exactly 2 entries {where}")


def _validate_strategy(batching: Any, message: ConfigMessage) -> None:
    name, largest = message.name, message.max_batch_size
    for index, size in enumerate(batching.oldest.preferred_batch_size):
        at = f"sequence_batching.oldest.preferred_batch_size[{index}] is {size}"
        if size <= 0:
            raise ConfigError(f"sequence batching preferred batch size must be positive for {name}: {at}")
        if size > largest:
            raise ConfigError(
                f"sequence batching preferred batch size must be <= max batch size for {name}: {at}, "
                f"max_batch_size is {largest}"
            )
    utilization = batching.direct.minimum_slot_utilization
    if not 0.0 <= utilization <= 1.0:
        raise ConfigError(
            f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {name}: "
            f"sequence_batching.direct.minimum_slot_utilization is {utilization:g}"
        )


def _validate_state(state: Any, name: str) -> None:
    for field in ("input_name", "output_name", "data_type"):
        if not getattr(state, field):
            raise ConfigError(f"sequence batching state must specify '{field}' for {name}")
    subject = f"state input '{state.input_name}'"
    if any(dim < 1 and dim != -1 for dim in state.dims):
        raise ConfigError(f"dims of {subject} for {name} must be integers >= 1, or -1, they are {list(state.dims)}")


def _validate_initial_state(state: Any, name: str) -> None:
    subject = f"state input '{state.input_name}'"
    if len(state.initial_state) > 1:
        raise ConfigError(
            f"initial_state field for {subject} must contain exactly one or zero element. "
            f"Found '{len(state.initial_state)}' elements."
        )
    initial = state.initial_state[0]
    if initial.data_type != state.data_type:
        raise ConfigError(
            f"The data type used for 'initial_state' field of state '{state.input_name}' does not match the state "
            f"data type, for {name}"
        )
    if not initial.name:
        raise ConfigError(f"Field 'name' must be set when using initial_state for {subject} for {name}")
    if len(initial.dims) != len(state.dims):
        raise ConfigError(
            f"Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for {subject}. "
            f"{len(initial.dims)} != {len(state.dims)}, for {name}"
        )
    for dim, declared in zip(initial.dims, state.dims, strict=True):
        if dim < 1:
            raise ConfigError(
                f"'initial_state' field for state input name '{state.input_name}' contains variable dimensions, "
                f"for {name}"
            )
        if declared not in (-1, dim):
            raise ConfigError(
                f"'initial_state' dim for input name '{state.input_name}' doesn't match 'state' dim "
                f"description. {dim} != {declared}, for {name}"
            )
    if initial.WhichOneof("state_data") is None:
        raise ConfigError(f"initial_state setting expects state'{state.input_name}' to have state_data set, for {name}")


def _validate_names(batching: Any, message: ConfigMessage) -> None:
    name = message.name
    inputs = [entry.name for entry in batching.control_input] + [state.input_name for state in batching.state]
    if twice := _repeated(inputs):
        raise _specified_twice(twice, name)
    if twice := _repeated(state.output_name for state in batching.state):
        raise ConfigError(f"state output '{twice}' is specified more than once for {name}")
    declared = {tensor.name for tensor in message.input}
    for own in inputs:
        if own in declared:
            raise ConfigError(
                f"'{own}' of {name} is both an input and a control or state of sequence_batching: "
                "the server supplies it, so remove it from the inputs"
            )


def _specified_twice(tensor: str, name: str) -> ConfigError:
    return ConfigError(
        f"sequence batching control tensor '{tensor}' is specified for multiple control kinds for {name}"
    )


def _repeated(names: Iterable[str]) -> str:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""
