"""What the steps of an ensemble are asked, and what is taken from their answers."""

from collections.abc import Container, Mapping
from time import monotonic_ns

from conch.errors import Code, ConchError, InvalidRequest
from conch.model_config import EnsembleStep, ModelConfig
from conch.request import InferRequest, InferResponse, StepRequest, Timeline
from conch.tensor import Tensor


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


def step_request(
    request: InferRequest, step: EnsembleStep, tensors: Mapping[str, Tensor], absent: Container[str]
) -> StepRequest:
    """Return the request for a step; optional inputs that the client left out (`absent`) are left out here too."""
    inner = StepRequest(
        step.model_name,
        [tensors[tensor].renamed(name) for name, tensor in step.input_map.items() if tensor not in absent],
        version=None if step.model_version < 0 else step.model_version,
        id=request.id,
        outputs=tuple(step.output_map),
        parameters=request.parameters,
        correlation_id=request.correlation_id,
        flags=request.flags,
        priority=request.priority,
        timeout_us=_left(request),
    )
    inner.caller = request.caller
    return inner


def take_outputs(step: EnsembleStep, answer: InferResponse, tensors: dict[str, Tensor]) -> None:
    """Take a step's outputs over into the tensors of the ensemble. Raises ConchError if one is missing."""
    for output in answer.outputs:
        tensor = step.output_map.get(output.name)
        if tensor is not None:
            tensors[tensor] = output.renamed(tensor)
    for name, tensor in step.output_map.items():
        if tensor not in tensors:
            got = ", ".join(f"'{output.name}'" for output in answer.outputs) or "none"
            raise ConchError(
                f"model '{step.model_name}' gave no output '{name}', which is the ensemble's tensor '{tensor}': "
                f"its response has {got}",
                Code.INTERNAL,
            )


def with_origins(ensemble: ModelConfig, step: EnsembleStep, error: ConchError) -> str:
    """Return the text of a step's error; of the inputs that a refusal names it says where they come from."""
    if not isinstance(error, InvalidRequest):
        return error.message
    made = {tensor: (each, name) for each in ensemble.ensemble_steps for name, tensor in each.output_map.items()}
    origins = []
    for name, tensor in step.input_map.items():
        if f"'{name}'" in error.message:
            giver, output = made.get(tensor, (None, ""))
            whose = f"output '{output}' of step '{giver.model_name}'" if giver else "an input of the ensemble"
            origins.append(f"'{name}' is tensor '{tensor}', {whose}")
    return f"{error.message} ({'; '.join(origins)})" if origins else error.message


def _left(request: InferRequest) -> int:
    """Return how much of its time-out a request has left for its next step, in µs: 0 is none given, never none left."""
    if not request.timeout_us:
        return 0
    return max(request.timeout_us - (monotonic_ns() - request.timeline.received) // 1000, 1)
