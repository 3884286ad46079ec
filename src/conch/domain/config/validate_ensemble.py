"""Validation rules of an ensemble's graph that need no other model: each tensor is written once and used.

Whether the tensors of two steps match is checked in `server/core/ensembles/contract.py`, where the models are known.
"""

from typing import Any

from conch.base.errors import ConfigError
from conch.domain.model_config import ENSEMBLE_PLATFORM
from conch.domain.triton_messages import ModelConfig as ConfigMessage


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
        raise ConfigError(f"ensemble input '{tensor}' for ensemble {name} is not used: no step has it in its input_map")
    for tensor in sorted(outputs - writers.keys()):
        raise ConfigError(f"ensemble output '{tensor}' for ensemble {name} is not used: no step writes it")
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
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{message.name}': "
                    f"steps {writers[tensor]} and {index} write it"
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
