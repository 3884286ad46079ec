"""What the steps of an ensemble are asked, and what is taken from their answers."""

from collections.abc import Mapping, MutableMapping
from time import monotonic_ns
from typing import NamedTuple, TypeAlias

from conch.errors import ConchError, InvalidRequest
from conch.model_config import EnsembleStep, ModelConfig
from conch.request import (
    SEQUENCE_END,
    SEQUENCE_START,
    InferRequest,
    InferResponse,
    ParameterValue,
    StepRequest,
    Timeline,
)
from conch.tensor import Tensor

# Parameters of a step's response that say where in its sequence what follows is, and what they must be.
_POSITION = {
    "sequence_id": "an integer or a string",
    "sequence_start": "a boolean",
    "sequence_end": "a boolean",
}
_POSITION_FLAGS = {"sequence_start": SEQUENCE_START, "sequence_end": SEQUENCE_END}


class StepTimes:
    """Times of the steps of one request, added up, in nanoseconds."""

    __slots__ = ("infer", "input", "output", "queue")

    def __init__(self) -> None:
        self.queue = self.input = self.infer = self.output = 0

    def add(self, timeline: Timeline) -> None:
        """Add those of a step that has been answered."""
        self.queue += timeline.started - timeline.queued
        self.input += timeline.input_done - timeline.started
        self.infer += timeline.infer_done - timeline.input_done
        self.output += timeline.done - timeline.infer_done


class SequencePosition(NamedTuple):
    """Which sequence a request belongs to, and by its flags whether it starts or ends it."""

    correlation_id: int | str
    flags: int


class StageTensor(NamedTuple):
    """A tensor between steps: None where an optional input or an output was left out.

    What a step made carries its position in the sequence, which the steps that take it have, too.
    """

    tensor: Tensor | None
    position: SequencePosition | None = None


Stage: TypeAlias = MutableMapping[str, StageTensor]

_LEFT_OUT = StageTensor(None)


def given_tensors(request: InferRequest, ensemble: ModelConfig) -> dict[str, StageTensor]:
    """Return the tensors that the first steps take."""
    tensors = {spec.name: _LEFT_OUT for spec in ensemble.inputs}
    for tensor in request.inputs:
        tensors[tensor.name] = StageTensor(tensor)
    return tensors


def step_position(request: InferRequest, step: EnsembleStep, tensors: Stage) -> SequencePosition:
    """Return where in its sequence a step is: where the step before it is, else where the client's request is."""
    for name in step.input_map.values():
        position = tensors[name].position
        if position is not None:
            return position
    return SequencePosition(request.correlation_id, request.flags)


def step_request(request: InferRequest, step: EnsembleStep, tensors: Stage, position: SequencePosition) -> StepRequest:
    """Return the request for a step, without the inputs that were left out."""
    inputs = []
    for name, source in step.input_map.items():
        tensor = tensors[source].tensor
        if tensor is not None:
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
        timeout_us=_left(request),
    )
    inner.caller = request.caller
    return inner


def take_outputs(step: EnsembleStep, answer: InferResponse, position: SequencePosition, tensors: Stage) -> None:
    """Take a step's outputs over into the tensors of the ensemble; what its response lacks was left out.

    Raises InvalidRequest if the response says where in its sequence it is in a type that is not the protocol's.
    """
    if answer.parameters:
        position = _moved(position, answer.parameters)
    for tensor in step.output_map.values():
        tensors[tensor] = StageTensor(None, position)
    for output in answer.outputs:
        name = step.output_map.get(output.name)
        if name is not None:
            tensors[name] = StageTensor(output.renamed(name), position)


def ensemble_response(request: InferRequest, config: ModelConfig, version: int, tensors: Stage) -> InferResponse:
    """Return the response of an ensemble, with its position in the sequence as parameters, as Triton does."""
    outputs = []
    parameters: dict[str, ParameterValue] = {}
    for name in request.outputs or [spec.name for spec in config.outputs]:
        made = tensors[name]
        if made.tensor is not None:
            outputs.append(made.tensor)
            if made.position is not None:
                parameters["sequence_id"] = made.position.correlation_id
                parameters["sequence_start"] = bool(made.position.flags & SEQUENCE_START)
                parameters["sequence_end"] = bool(made.position.flags & SEQUENCE_END)
    return InferResponse(config.name, version, outputs, id=request.id, parameters=parameters)


def _moved(position: SequencePosition, parameters: Mapping[str, ParameterValue]) -> SequencePosition:
    """Return the position that a response gives in its parameters."""
    found = [key for key in _POSITION if key in parameters]
    if not found:
        return position
    for key in found:
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
    failed = ConchError(message, error.code, retry_after_s=error.retry_after_s)
    failed.by_server = error.by_server
    return failed


def _with_origins(ensemble: ModelConfig, step: EnsembleStep, error: ConchError) -> str:
    """Return the text of a step's error; of the inputs that a refusal names it says where they come from."""
    if not isinstance(error, InvalidRequest):
        return error.message
    made = {tensor: (each, name) for each in ensemble.ensemble_steps for name, tensor in each.output_map.items()}
    origins = []
    missing = error.message.partition("missing required")[2]
    for name, tensor in step.input_map.items():
        if f"'{name}'" in (missing or error.message):
            giver, output = made.get(tensor, (None, ""))
            whose = f"output '{output}' of step '{giver.model_name}'" if giver else "an input of the ensemble"
            whose += ", which its response lacks" if giver and missing else ""
            origins.append(f"'{name}' is tensor '{tensor}', {whose}")
    return f"{error.message} ({'; '.join(origins)})" if origins else error.message


def _left(request: InferRequest) -> int:
    """Return how much of its time-out a request has left for its next step, in µs: 0 is none given, never none left."""
    if not request.timeout_us:
        return 0
    return max(request.timeout_us - (monotonic_ns() - request.timeline.received) // 1000, 1)
