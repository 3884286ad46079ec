"""Convert a validated `sequence_batching` of Triton's message to Conch's values."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conch.domain.config.enums import datatype_name, enum_name
from conch.domain.model_config import ControlKind, SequenceBatching, SequenceControl, SequenceState
from conch.domain.triton_messages import model_config_pb2 as schema

# Fields of a control that hold its false and its true value → datatype of the tensor.
BOOLEAN_FORMS = {"int32_false_true": "INT32", "fp32_false_true": "FP32", "bool_false_true": "BOOL"}
_DTYPES = {"INT32": "<i4", "FP32": "<f4", "BOOL": "?"}


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
