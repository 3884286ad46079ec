"""Convert Triton's `ModelConfig` message to Conch's `ModelConfig` value."""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

import numpy as np

from conch.domain.config.document import to_document
from conch.domain.model_config import (
    BatchInput,
    BatchInputKind,
    BatchOutput,
    ControlKind,
    DynamicBatching,
    EnsembleStep,
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    QueuePolicy,
    RateLimit,
    ResourceNeed,
    SequenceBatching,
    SequenceControl,
    SequenceState,
    TensorSpec,
    TimeoutAction,
    VersionPolicy,
    VersionPolicyKind,
    Warmup,
    WarmupTensor,
)
from conch.domain.triton_messages import ModelConfig as ConfigMessage
from conch.domain.triton_messages import datatype_name, enum_name
from conch.domain.triton_messages import model_config_pb2 as schema

# Fields of a control that hold its false and its true value → datatype of the tensor.
BOOLEAN_FORMS = {"int32_false_true": "INT32", "fp32_false_true": "FP32", "bool_false_true": "BOOL"}
_DTYPES = {"INT32": "<i4", "FP32": "<f4", "BOOL": "?"}


def to_model_config(message: ConfigMessage) -> ModelConfig:
    """Convert a message, complete or not; unset fields are empty in the result. Its document is the whole message.

    Raises ConfigError for an unknown number of an enum.
    """
    choice = message.WhichOneof("scheduling_choice")
    return ModelConfig(
        name=message.name,
        backend=message.backend,
        platform=message.platform,
        max_batch_size=message.max_batch_size,
        inputs=tuple(_tensor(tensor) for tensor in message.input),
        outputs=tuple(_tensor(tensor) for tensor in message.output),
        instance_groups=tuple(_instance_group(group) for group in message.instance_group),
        version_policy=_version_policy(message.version_policy),
        dynamic_batching=_dynamic_batching(message.dynamic_batching) if choice == "dynamic_batching" else None,
        sequence_batching=sequence_batching(message.sequence_batching) if choice == "sequence_batching" else None,
        ensemble_steps=tuple(_step(step) for step in message.ensemble_scheduling.step),
        max_inflight_requests=message.ensemble_scheduling.max_inflight_requests,
        decoupled=message.model_transaction_policy.decoupled,
        response_cache=message.response_cache.enable,
        default_model_filename=message.default_model_filename,
        cc_model_filenames=dict(message.cc_model_filenames),
        parameters={key: value.string_value for key, value in message.parameters.items()},
        metric_tags=dict(message.metric_tags),
        histogram_buckets={
            control.metric_identifier.family: tuple(control.histogram_options.buckets)
            for control in message.model_metrics.metric_control
        },
        warmups=tuple(_warmup(warmup) for warmup in message.model_warmup if warmup.batch_size),
        batch_inputs=tuple(_batch_input(tensor) for tensor in message.batch_input),
        batch_outputs=tuple(_batch_output(tensor) for tensor in message.batch_output),
        document=to_document(message),
    )


def _tensor(message: Any) -> TensorSpec:
    is_input = isinstance(message, schema.ModelInput)
    return TensorSpec(
        name=message.name,
        datatype=datatype_name(message.data_type),
        dims=tuple(message.dims),
        reshape=tuple(message.reshape.shape) if message.HasField("reshape") else None,
        optional=is_input and message.optional,
        allow_ragged_batch=is_input and message.allow_ragged_batch,
        label_filename="" if is_input else message.label_filename,
    )


def _batch_input(message: Any) -> BatchInput:
    kind = enum_name(schema.BatchInput.Kind, message.kind).removeprefix("BATCH_")
    return BatchInput(
        kind=BatchInputKind(kind),
        targets=tuple(message.target_name),
        datatype=datatype_name(message.data_type),
        source=next(iter(message.source_input), ""),
    )


def _batch_output(message: Any) -> BatchOutput:
    enum_name(schema.BatchOutput.Kind, message.kind)
    return BatchOutput(targets=tuple(message.target_name), source=next(iter(message.source_input), ""))


def _instance_group(message: Any) -> InstanceGroup:
    limiter = message.rate_limiter
    return InstanceGroup(
        name=message.name,
        kind=InstanceKind(enum_name(schema.ModelInstanceGroup.Kind, message.kind)),
        count=message.count,
        gpus=tuple(message.gpus),
        passive=message.passive,
        rate=RateLimit(
            tuple(
                ResourceNeed(resource.name, resource.count, getattr(resource, "global"))
                for resource in limiter.resources
            ),
            limiter.priority,
        ),
        host_policy=message.host_policy,
    )


def _version_policy(message: Any) -> VersionPolicy:
    choice = message.WhichOneof("policy_choice")
    if choice == "all":
        return VersionPolicy(VersionPolicyKind.ALL)
    if choice == "specific":
        return VersionPolicy(VersionPolicyKind.SPECIFIC, versions=tuple(message.specific.versions))
    return VersionPolicy(num_versions=message.latest.num_versions if choice else 1)


def _dynamic_batching(message: Any) -> DynamicBatching:
    return DynamicBatching(
        preferred_batch_sizes=tuple(message.preferred_batch_size),
        max_queue_delay_us=message.max_queue_delay_microseconds,
        preserve_ordering=message.preserve_ordering,
        priority_levels=message.priority_levels,
        default_priority_level=message.default_priority_level,
        default_queue_policy=_queue_policy(message.default_queue_policy),
        priority_queue_policies={
            level: _queue_policy(policy) for level, policy in message.priority_queue_policy.items()
        },
    )


def _queue_policy(message: Any) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=TimeoutAction(enum_name(schema.ModelQueuePolicy.TimeoutAction, message.timeout_action)),
        default_timeout_us=message.default_timeout_microseconds,
        allow_timeout_override=message.allow_timeout_override,
        max_queue_size=message.max_queue_size,
    )


def _step(message: Any) -> EnsembleStep:
    return EnsembleStep(
        model_name=message.model_name,
        # In the message an unset version is 0, and no version has the number 0.
        model_version=message.model_version or -1,
        input_map=dict(message.input_map),
        output_map=dict(message.output_map),
        model_namespace=message.model_namespace,
    )


def _warmup(message: Any) -> Warmup:
    return Warmup(
        name=message.name,
        batch_size=message.batch_size,
        count=message.count or 1,
        inputs=tuple(_warmup_tensors(message.inputs.items())),
    )


def _warmup_tensors(inputs: Iterable[tuple[str, Any]]) -> Iterable[WarmupTensor]:
    for name, message in sorted(inputs, key=itemgetter(0)):
        yield WarmupTensor(
            name,
            datatype_name(message.data_type),
            tuple(message.dims),
            filename=message.input_data_file,
            random=message.WhichOneof("input_data_type") == "random_data",
        )


def sequence_batching(message: Any) -> SequenceBatching:
    """Return the value of a `sequence_batching` message."""
    is_oldest = message.WhichOneof("strategy_choice") == "oldest"
    oldest, direct = message.oldest, message.direct
    controls = sorted(_controls(message), key=lambda control: list(ControlKind).index(control.kind))
    return SequenceBatching(
        oldest=is_oldest,
        max_candidates=oldest.max_candidate_sequences,
        preferred_batch_sizes=tuple(oldest.preferred_batch_size),
        preserve_ordering=oldest.preserve_ordering,
        minimum_slot_utilization=direct.minimum_slot_utilization,
        max_queue_delay_us=(oldest if is_oldest else direct).max_queue_delay_microseconds,
        max_idle_us=message.max_sequence_idle_microseconds,
        iterative=message.iterative_sequence,
        controls=tuple(controls),
        states=tuple(map(_state, message.state)),
    )


def control_kind(control: Any) -> ControlKind:
    """Return the kind of a control. Raises ConfigError for an unknown number."""
    return ControlKind(enum_name(schema.ModelSequenceBatching.Control.Kind, control.kind))


def _controls(message: Any) -> Iterator[SequenceControl]:
    for entry in message.control_input:
        for control in entry.control:
            kind = control_kind(control)
            if kind is ControlKind.CORRID:
                yield SequenceControl(kind, entry.name, datatype_name(control.data_type))
                continue
            for field, datatype in BOOLEAN_FORMS.items():
                values = [np.array([[value]], _DTYPES[datatype]).tobytes() for value in getattr(control, field)]
                if values:
                    yield SequenceControl(kind, entry.name, datatype, false=values[0], true=values[1])


def _state(message: Any) -> SequenceState:
    dims = tuple(message.dims)
    initial = message.initial_state[0] if message.initial_state else None
    return SequenceState(
        input_name=message.input_name,
        output_name=message.output_name,
        datatype=datatype_name(message.data_type),
        dims=dims,
        # Variable dimensions of an initial state are 1, as in Triton.
        initial_dims=tuple(initial.dims) if initial else tuple(max(dim, 1) for dim in dims),
        initial_file=initial.data_file if initial else "",
    )
