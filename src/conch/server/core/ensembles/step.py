# Compiled by mypyc in wheels.
"""Requests to the steps of an ensemble, and the tensors of their responses."""

from collections.abc import Mapping, MutableMapping
from time import monotonic_ns
from typing import Final, TypeAlias

from conch.base.errors import ConchError, DeadlineMissed, InvalidRequest
from conch.domain.model_config import EnsembleStep, ModelConfig, TensorSpec
from conch.domain.request import (
    SEQUENCE_END,
    SEQUENCE_START,
    InferRequest,
    InferResponse,
    ParameterValue,
    StepRequest,
    Timeline,
)
from conch.domain.tensor import Tensor
from conch.server.core.validation import fits

# Parameters of a step's response that set the position of the following steps in their sequence, and their types.
_POSITION: Final = {
    "sequence_id": "an integer or a string",
    "sequence_start": "a boolean",
    "sequence_end": "a boolean",
}
_POSITION_FLAGS: Final = {"sequence_start": SEQUENCE_START, "sequence_end": SEQUENCE_END}


class StepTimes:
    """Sums of the times of a request's steps, in nanoseconds."""

    __slots__ = ("infer", "input", "output", "queue")

    def __init__(self) -> None:
        self.queue = self.input = self.infer = self.output = 0

    def add(self, timeline: Timeline) -> None:
        """Add the times of a step that has ended."""
        self.queue += timeline.started - timeline.queued
        self.input += timeline.input_done - timeline.started
        self.infer += timeline.infer_done - timeline.input_done
        self.output += timeline.done - timeline.infer_done


# Several of these are made for each step of a request: plain classes, which cost less than tuples with names.


class SequencePosition:
    """The sequence that a request belongs to, and flags that say whether it starts or ends it."""

    __slots__ = ("correlation_id", "flags")

    def __init__(self, correlation_id: int | str, flags: int) -> None:
        self.correlation_id = correlation_id
        self.flags = flags


class StageTensor:
    """A tensor between steps: None where an optional input or an output was omitted.

    The output of a step carries the position in the sequence, which the steps that read it take over. `batched` is
    whether its first dimension is the batch's.
    """

    __slots__ = ("batched", "position", "tensor")

    def __init__(self, tensor: Tensor | None, batched: bool, position: SequencePosition | None = None) -> None:
        self.tensor = tensor
        self.batched = batched
        self.position = position


Stage: TypeAlias = MutableMapping[str, StageTensor]


def given_tensors(request: InferRequest, ensemble: ModelConfig) -> dict[str, StageTensor]:
    """Return the inputs of the first steps."""
    batched = ensemble.max_batch_size > 0
    omitted = StageTensor(None, batched)
    tensors = {spec.name: omitted for spec in ensemble.inputs}
    for tensor in request.inputs:
        tensors[tensor.name] = StageTensor(tensor, batched)
    return tensors


def step_position(request: InferRequest, step: EnsembleStep, tensors: Stage) -> SequencePosition:
    """Return the position of a step in its sequence: that of the step before it, else of the client's request."""
    for name in step.input_map.values():
        position = tensors[name].position
        if position is not None:
            return position
    return SequencePosition(request.correlation_id, request.flags)


def step_request(
    request: InferRequest, step: EnsembleStep, model: ModelConfig, tensors: Stage, position: SequencePosition
) -> StepRequest:
    """Return the request for a step to its model, without the inputs that were omitted."""
    inputs = []
    batched = model.max_batch_size > 0
    for name, source in step.input_map.items():
        made = tensors[source]
        tensor = made.tensor
        if tensor is not None:
            if made.batched != batched:
                tensor = _rebatched(tensor, batched, model.input(name))
            inputs.append(tensor.renamed(name))
    inner = StepRequest(
        step.model_name,
        inputs,
        version=None if step.model_version < 0 else step.model_version,
        id=request.id,
        outputs=tuple(step.output_map),
        parameters=request.parameters,
        correlation_id=position.correlation_id,
        flags=position.flags,
        priority=request.priority,
        timeout_us=_remaining_timeout_us(request),
    )
    inner.caller = request.caller
    inner.timeline.deadline = request.timeline.deadline
    return inner


def take_outputs(
    step: EnsembleStep, model: ModelConfig, answer: InferResponse, position: SequencePosition, tensors: Stage
) -> None:
    """Add the outputs of a step's model to the tensors of the ensemble; those that its response lacks are omitted.

    Raises InvalidRequest if a parameter of the response that sets the sequence position has a wrong type.
    """
    if answer.parameters:
        position = _moved_position(position, answer.parameters)
    batched = model.max_batch_size > 0
    for output in answer.outputs:
        name = step.output_map.get(output.name)
        if name is not None:
            tensors[name] = StageTensor(output.renamed(name), batched, position)
    for name in step.output_map.values():
        if name not in tensors:
            tensors[name] = StageTensor(None, batched, position)


def ensemble_response(request: InferRequest, config: ModelConfig, version: int, tensors: Stage) -> InferResponse:
    """Return the response of an ensemble, with the sequence position as parameters, as Triton does."""
    outputs = []
    batched = config.max_batch_size > 0
    parameters: dict[str, ParameterValue] = {}
    for name in request.outputs or [spec.name for spec in config.outputs]:
        made = tensors[name]
        tensor = made.tensor
        if tensor is not None:
            if made.batched != batched:
                tensor = _rebatched(tensor, batched, config.output(name))
            outputs.append(tensor)
            if made.position is not None:
                parameters["sequence_id"] = made.position.correlation_id
                parameters["sequence_start"] = bool(made.position.flags & SEQUENCE_START)
                parameters["sequence_end"] = bool(made.position.flags & SEQUENCE_END)
    return InferResponse(config.name, version, outputs, id=request.id, parameters=parameters)


def _rebatched(tensor: Tensor, batched: bool, spec: TensorSpec | None) -> Tensor:
    """Return a tensor between a model with batches and one without in the shape for its reader, as Triton converts it.

    A reader with batches gets a batch of one of what fits its dims without a batch. A reader without gets the item of a
    batch of one, unless the whole batch fits its dims.
    """
    shape = tensor.shape
    is_fit = spec is not None and fits(shape, spec.dims)
    if batched:
        return tensor.reshaped((1, *shape)) if is_fit else tensor
    return tensor if is_fit or shape[:1] != (1,) else tensor.reshaped(shape[1:])


def _moved_position(position: SequencePosition, parameters: Mapping[str, ParameterValue]) -> SequencePosition:
    """Return the position with the changes that a response makes by its parameters."""
    keys = [key for key in _POSITION if key in parameters]
    if not keys:
        return position
    for key in keys:
        value = parameters[key]
        fits = isinstance(value, bool) if key in _POSITION_FLAGS else type(value) in (int, str)
        if not fits:
            raise InvalidRequest(f"expect parameter '{key}' of the response to be {_POSITION[key]}, got {value!r}")
    correlation_id = parameters.get("sequence_id", position.correlation_id)
    assert isinstance(correlation_id, int | str)
    flags = 0
    for key, flag in _POSITION_FLAGS.items():
        flags |= flag if parameters.get(key) else 0
    return SequencePosition(correlation_id, flags)


def located(ensemble: ModelConfig, step: EnsembleStep, text: str) -> str:
    """Return the text of an error with the step that it comes from."""
    gap = "" if text.endswith("\n") else " "
    return f"in ensemble '{ensemble.name}', {text}{gap}(step '{step.model_name}')"


def step_failure(ensemble: ModelConfig, step: EnsembleStep, error: ConchError) -> ConchError:
    """Return the error that ends a request of an ensemble for the error of a step.

    Counted as OTHER, as in Triton: the step's own model has counted the reason.
    """
    message = located(ensemble, step, _with_origins(ensemble, step, error))
    if isinstance(error, DeadlineMissed):
        return DeadlineMissed(message, error.stage, retry_after_s=error.retry_after_s)
    failed = ConchError(message, error.code, retry_after_s=error.retry_after_s)
    failed.by_server = error.by_server
    return failed


def _with_origins(ensemble: ModelConfig, step: EnsembleStep, error: ConchError) -> str:
    """Return the text of a step's error, with the origins of the inputs that a rejection names."""
    if not isinstance(error, InvalidRequest):
        return error.message
    made = {tensor: (maker, name) for maker in ensemble.ensemble_steps for name, tensor in maker.output_map.items()}
    origins = []
    missing = error.message.partition("missing required")[2]
    for name, tensor in step.input_map.items():
        if f"'{name}'" in (missing or error.message):
            maker, output = made.get(tensor, (None, ""))
            origin = f"output '{output}' of step '{maker.model_name}'" if maker else "an input of the ensemble"
            origin += ", which its response lacks" if maker and missing else ""
            origins.append(f"'{name}' is tensor '{tensor}', {origin}")
    return f"{error.message} ({'; '.join(origins)})" if origins else error.message


def _remaining_timeout_us(request: InferRequest) -> int:
    """Return the rest of a request's timeout for its next step, in µs: 0 without a timeout, at least 1 with one."""
    if not request.timeout_us:
        return 0
    return max(request.timeout_us - (monotonic_ns() - request.timeline.received) // 1000, 1)
