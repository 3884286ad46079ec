"""The ensemble of a pipeline: connect each step to the outputs before it, by datatype, shape and name. Pure."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from conch.base.errors import ConfigError
from conch.domain.config.pbtxt import parse_pbtxt
from conch.domain.config.validate import validate_ensemble
from conch.domain.files.signature import TensorInfo
from conch.domain.triton_messages import config_datatype
from conch.measure.advise.advice_facts import DeclaredTensors, ModelFacts

_NAME = "pipeline"


class NotConnectable(ValueError):
    """The tensors do not tell how the steps connect; the message says which one does not."""


@dataclass(frozen=True, slots=True)
class PipelineEnsemble:
    """The ensemble's name and its config.pbtxt."""

    name: str
    text: str


@dataclass(slots=True)
class _Step:
    """A step and its maps: tensor of the model → tensor of the ensemble."""

    name: str
    tensors: DeclaredTensors
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)


def plan_ensemble(steps: Sequence[tuple[ModelFacts, int]]) -> PipelineEnsemble:
    """Return the ensemble of models in their order; each with the max_batch_size of its configuration.

    The inputs are those that no earlier step gives, the outputs those of the last step. Raises NotConnectable.
    """
    planned = [_Step(model.name, _tensors(model, batch)) for model, batch in steps]
    limits = [step.tensors.max_batch_size for step in planned]
    batch = min(limits)
    sizes = {step.name: 0 if batch else limit for step, limit in zip(planned, limits, strict=True)}
    inputs: dict[str, TensorInfo] = {}
    for number, step in enumerate(planned):
        for wanted in step.tensors.inputs:
            source = _source(planned[:number], wanted, step, sizes)
            if source is not None:
                giver, output = source
                step.inputs[wanted.name] = giver.outputs.setdefault(output.name, f"{giver.name}.{output.name}")
            else:
                step.inputs[wanted.name] = _own_input(inputs, step, wanted, sizes)
        if number and not any(tensor not in inputs for tensor in step.inputs.values()):
            raise NotConnectable(
                f"no input of '{step.name}' fits an output of an earlier model, or only one of several"
            )
    outputs = {}
    for output in planned[-1].tensors.outputs:
        name = output.name if output.name not in inputs else f"{planned[-1].name}.{output.name}"
        planned[-1].outputs[output.name] = name
        outputs[name] = _full(output, sizes[planned[-1].name])
    for step in planned[:-1]:
        if not step.outputs:
            raise NotConnectable(f"no later model takes an output of '{step.name}'")
    return _checked(planned, inputs, outputs, batch)


def _tensors(model: ModelFacts, batch: int) -> DeclaredTensors:
    """Return the tensors of a model, by its configuration or its file. Raises NotConnectable if neither has them."""
    if model.is_language:
        raise NotConnectable(
            f"'{model.name}' is a language model, which needs a Python model before it that writes the prompt"
        )
    if model.declared is not None:
        return model.declared
    if not model.inputs or not model.outputs or model.folder is not None:
        raise NotConnectable(f"'{model.name}' declares no inputs and outputs: write them into its config.pbtxt")
    if not batch:
        return DeclaredTensors(0, model.inputs, model.outputs)
    return DeclaredTensors(batch, *(tuple(map(_without_batch, tensors)) for tensors in (model.inputs, model.outputs)))


def _without_batch(info: TensorInfo) -> TensorInfo:
    return TensorInfo(info.name, info.datatype, info.dims[1:])


def _full(info: TensorInfo, batch: int) -> TensorInfo:
    """Return a tensor as the ensemble declares it: with the batch as a dimension if the ensemble has no batches."""
    return TensorInfo(info.name, info.datatype, (-1, *info.dims) if batch else info.dims)


def _source(
    earlier: Sequence[_Step], wanted: TensorInfo, step: _Step, sizes: dict[str, int]
) -> tuple[_Step, TensorInfo] | None:
    """Return the output for an input: the latest of its name, or the only one that fits of the latest step that fits.

    Raises NotConnectable if several fit and none has the name.
    """
    full = _full(wanted, sizes[step.name])
    fitting = [
        (giver, [output for output in giver.tensors.outputs if _fits(_full(output, sizes[giver.name]), full)])
        for giver in reversed(earlier)
    ]
    for giver, outputs in fitting:
        for output in outputs:
            if output.name.lower() == wanted.name.lower():
                return giver, output
    for giver, outputs in fitting:
        if len(outputs) > 1:
            names = ", ".join(f"'{output.name}'" for output in outputs)
            raise NotConnectable(
                f"input '{wanted.name}' of '{step.name}' fits several outputs of '{giver.name}': {names}"
            )
        if outputs:
            return giver, outputs[0]
    return None


def _fits(given: TensorInfo, wanted: TensorInfo) -> bool:
    pairs = zip(given.dims, wanted.dims, strict=False)
    return (
        given.datatype == wanted.datatype
        and len(given.dims) == len(wanted.dims)
        and all(-1 in (a, b) or a == b for a, b in pairs)
    )


def _own_input(inputs: dict[str, TensorInfo], step: _Step, wanted: TensorInfo, sizes: dict[str, int]) -> str:
    """Return the ensemble's input for an input that no step gives; equal ones of several steps are one."""
    full = _full(wanted, sizes[step.name])
    name = wanted.name if inputs.get(wanted.name, full) == full else f"{step.name}.{wanted.name}"
    inputs[name] = full
    return name


def _checked(
    steps: Sequence[_Step], inputs: dict[str, TensorInfo], outputs: dict[str, TensorInfo], batch: int
) -> PipelineEnsemble:
    name = _NAME
    while name in {step.name for step in steps}:
        name += "_ensemble"
    text = "\n".join(_lines(steps, inputs, outputs, batch)) + "\n"
    try:
        message = parse_pbtxt(text, "the ensemble")
        message.name = name
        validate_ensemble(message)
    except ConfigError as error:
        raise NotConnectable(error.message) from None
    return PipelineEnsemble(name, text)


def _lines(
    steps: Sequence[_Step], inputs: dict[str, TensorInfo], outputs: dict[str, TensorInfo], batch: int
) -> Iterator[str]:
    yield 'platform: "ensemble"'
    if batch:
        yield f"max_batch_size: {batch}"
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for name, info in tensors.items():
            dims = ", ".join(map(str, info.dims))
            yield f"{kind} [ {{ name: {_quoted(name)} data_type: {config_datatype(info.datatype)} dims: [ {dims} ] }} ]"
    yield "ensemble_scheduling {"
    for step in steps:
        yield "  step {"
        yield f"    model_name: {_quoted(step.name)}"
        yield "    model_version: -1"
        for kind, mapped in (("input_map", step.inputs), ("output_map", step.outputs)):
            for inner, tensor in mapped.items():
                yield f"    {kind} {{ key: {_quoted(inner)} value: {_quoted(tensor)} }}"
        yield "  }"
    yield "}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
