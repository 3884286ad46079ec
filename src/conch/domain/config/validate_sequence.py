"""Validation rules of `sequence_batching`. Messages begin with Triton's text."""

from collections.abc import Iterable
from typing import Any

from conch.base.errors import ConfigError
from conch.domain.config.enums import datatype_name
from conch.domain.config.sequence_from_proto import BOOLEAN_FORMS, control_kind
from conch.domain.model_config import ControlKind
from conch.domain.triton_messages import ModelConfig as ConfigMessage

_ID_DATATYPES = ("UINT64", "INT64", "UINT32", "INT32", "BYTES")
_FORMS = "'int32_false_true', 'fp32_false_true' {} 'bool_false_true'"


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
            _validate_control(control, kind, f"for {kind.value} for {name}: control_input '{entry.name}'")


def _validate_control(control: Any, kind: ControlKind, where: str) -> None:
    given = [field for field in BOOLEAN_FORMS if getattr(control, field)]
    if kind is ControlKind.CORRID:
        if given:
            raise ConfigError(f"sequence batching must not specify either {_FORMS.format('or')} {where}")
        if not control.data_type:
            raise ConfigError(f"sequence batching control tensor must specify a 'data_type' {where}")
        if datatype_name(control.data_type) not in _ID_DATATYPES:
            raise ConfigError(
                f"unexpected data type for control {where}. Allowed data types are TYPE_UINT64, TYPE_INT64, "
                "TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
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
    if len(state.initial_state) > 1:
        raise ConfigError(
            f"initial_state field for {subject} must contain exactly one or zero element. "
            f"Found '{len(state.initial_state)}' elements."
        )
    for initial in state.initial_state:
        _validate_initial_state(initial, state, subject, name)


def _validate_initial_state(initial: Any, state: Any, subject: str, name: str) -> None:
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
                f"'initial_state' dim for {subject} doesn't match 'state' dim description. {dim} != {declared}, "
                f"for {name}"
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
    for each in names:
        if each in seen:
            return each
        seen.add(each)
    return ""
