"""What is known of a request, by the names that expressions use."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from conch.errors import ConchError
from conch.generation import SamplingParams, Usage
from conch.request import ParameterValue, Timeline
from conch.tensor import Tensor

Type: TypeAlias = Literal["number", "text", "boolean"]

_NO_TENSORS: list[Tensor] = []
_SECOND_NS = 1_000_000_000


class RequestFacts:
    """One request of one model version. Properties are computed when an expression asks for them."""

    __slots__ = (
        "_first_response",
        "_usage",
        "batch_size",
        "cache_hit",
        "error",
        "inputs",
        "model",
        "namespace",
        "outputs",
        "parameters",
        "priority",
        "timeline",
        "version",
    )

    def __init__(
        self,
        model: str,
        namespace: str,
        version: int,
        timeline: Timeline,
        parameters: Mapping[str, ParameterValue] | SamplingParams,
        *,
        batch_size: int = 1,
        priority: int = 0,
        inputs: list[Tensor] = _NO_TENSORS,
        outputs: list[Tensor] = _NO_TENSORS,
        error: ConchError | None = None,
        usage: Usage | None = None,
        first_response: int = 0,
        cache_hit: bool = False,
    ) -> None:
        self.model = model
        self.namespace = namespace
        self.version = version
        self.timeline = timeline
        self.parameters = parameters
        self.batch_size = batch_size
        self.priority = priority
        self.inputs = inputs
        self.outputs = outputs
        self.error = error
        self.cache_hit = cache_hit
        self._usage = usage
        self._first_response = first_response

    @property
    def success(self) -> bool:
        """Whether the request has not failed."""
        return self.error is None

    @property
    def reason(self) -> str:
        """The reason of the failure as in `nv_inference_request_failure`, "" for success."""
        return "" if self.error is None else self.error.reason.value

    @property
    def input_bytes(self) -> int:
        """Bytes of all inputs."""
        return sum([tensor.nbytes for tensor in self.inputs])

    @property
    def output_bytes(self) -> int:
        """Bytes of the outputs of the last response."""
        return sum([tensor.nbytes for tensor in self.outputs])

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt of a language model."""
        return 0 if self._usage is None else self._usage.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens that a language model generated."""
        return 0 if self._usage is None else self._usage.completion_tokens

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt from the prefix cache."""
        return 0 if self._usage is None else self._usage.cached_tokens

    @property
    def duration(self) -> float:
        """Seconds from the receipt to the end."""
        return _seconds(self.timeline.received, self.timeline.done)

    @property
    def queue_duration(self) -> float:
        """Seconds of waiting for an instance; of a language model, until the first token."""
        timeline = self.timeline
        return _seconds(timeline.queued or timeline.received, timeline.started)

    @property
    def compute_input_duration(self) -> float:
        """Seconds of preparing inputs."""
        return _seconds(self.timeline.started, self.timeline.input_done)

    @property
    def compute_infer_duration(self) -> float:
        """Seconds of executing the model."""
        return _seconds(self.timeline.input_done, self.timeline.infer_done)

    @property
    def compute_output_duration(self) -> float:
        """Seconds of preparing outputs."""
        return _seconds(self.timeline.infer_done, self.timeline.done)

    @property
    def first_response_duration(self) -> float:
        """Seconds from the receipt to the first response; of a language model, to the first token."""
        return _seconds(self.timeline.received, self._first_response or self.timeline.done)


# Names of expressions. Those of the first table are known when a request begins.
AT_BEGIN: Mapping[str, Type] = {
    "batch_size": "number",
    "input_bytes": "number",
    "model": "text",
    "namespace": "text",
    "priority": "number",
    "version": "number",
}
AT_END: Mapping[str, Type] = {
    **AT_BEGIN,
    "cache_hit": "boolean",
    "cached_tokens": "number",
    "completion_tokens": "number",
    "compute_infer_duration": "number",
    "compute_input_duration": "number",
    "compute_output_duration": "number",
    "duration": "number",
    "first_response_duration": "number",
    "output_bytes": "number",
    "prompt_tokens": "number",
    "queue_duration": "number",
    "reason": "text",
    "success": "boolean",
}


def _seconds(start: int, end: int) -> float:
    """Return the time between two moments, 0 if one of them did not come."""
    return (end - start) / _SECOND_NS if end > start > 0 else 0.0
