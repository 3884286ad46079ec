"""Validation rules of `batch_input` and `batch_output`, used with ragged batches. Messages begin with Triton's text."""

from typing import Any

from conch.base.errors import ConfigError
from conch.domain.triton_messages import ModelConfig as ConfigMessage
from conch.domain.triton_messages import model_config_pb2 as schema

_DATATYPES = (schema.TYPE_INT32, schema.TYPE_FP32)


def validate_batch_tensors(message: ConfigMessage) -> None:
    """Check both fields in a completed configuration. Raises ConfigError for the first broken rule."""
    inputs = {tensor.name for tensor in message.input}
    outputs = {tensor.name for tensor in message.output}
    targets: set[str] = set()
    for index, each in enumerate(message.batch_input):
        where = f"for {message.name}: batch_input[{index}]"
        _validate_source(each, "input", schema.BatchInput.Kind, inputs, where)
        if each.data_type not in _DATATYPES:
            raise ConfigError(f"batch input data type must be TYPE_INT32 or TYPE_FP32 {where}")
        for name in _targets(each, "input", where):
            if name in inputs | targets:
                raise ConfigError(f"batch input '{name}' is created by the server; the name is used elsewhere {where}")
            targets.add(name)
    targets.clear()
    for index, each in enumerate(message.batch_output):
        where = f"for {message.name}: batch_output[{index}]"
        _validate_source(each, "output", schema.BatchOutput.Kind, inputs, where)
        for name in _targets(each, "output", where):
            if name not in outputs:
                raise ConfigError(f"unknown target output name '{name}' {where}; known: {_list(outputs)}")
            if name in targets:
                raise ConfigError(f"target output name '{name}' can only be specified once {where}")
            targets.add(name)


def _validate_source(each: Any, side: str, kinds: Any, inputs: set[str], where: str) -> None:
    if len(each.source_input) != 1:
        kind = kinds.Name(each.kind) if each.kind in kinds.values() else each.kind
        raise ConfigError(f"batch {side} kind '{kind}' expects 1 source input, got {len(each.source_input)} {where}")
    if each.source_input[0] not in inputs:
        raise ConfigError(f"unknown source input name '{each.source_input[0]}' {where}; known: {_list(inputs)}")


def _targets(each: Any, side: str, where: str) -> list[str]:
    if not each.target_name:
        raise ConfigError(f"batch {side} must specify 'target_name' {where}")
    return list(each.target_name)


def _list(names: set[str]) -> str:
    return ", ".join(sorted(names))
