"""What is known of a request, by the names that expressions use."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from conch.base.errors import ConchError
from conch.domain.generation import GenerationRequest, SamplingParams, Usage
from conch.domain.request import InferRequest, InferResponse, ParameterValue, Timeline

Type: TypeAlias = Literal["number", "text", "boolean"]

Evaluate: TypeAlias = Callable[["RequestFacts"], Any]

_SECOND_NS = 1_000_000_000


class ModelIdentity(NamedTuple):
    """A model version, for the facts of its requests."""

    model: str
    namespace: str
    version: int


class RequestFacts:
    """One inference request of one model version. Properties are computed when an expression asks for them.

    `failure` is the first error before the final response; `first_response` is its time, monotonic ns, 0 for none.
    """

    __slots__ = ("_answer", "_first_response", "_of", "_request", "cache_hit", "error")

    def __init__(
        self,
        of: ModelIdentity,
        request: InferRequest,
        answer: InferResponse | ConchError | None = None,
        failure: ConchError | None = None,
        first_response: int = 0,
        cache_hit: bool = False,
    ) -> None:
        self._of = of
        self._request = request
        self._answer = answer
        self._first_response = first_response
        self.error = answer if isinstance(answer, ConchError) else failure
        self.cache_hit = cache_hit

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._of.model

    @property
    def namespace(self) -> str:
        """Repository of the model, "" without namespaces."""
        return self._of.namespace

    @property
    def version(self) -> int:
        """Version of the model."""
        return self._of.version

    @property
    def timeline(self) -> Timeline:
        """Times of the request."""
        return self._request.timeline

    @property
    def parameters(self) -> Mapping[str, ParameterValue] | SamplingParams:
        """Parameters of the request."""
        return self._request.parameters

    @property
    def batch_size(self) -> int:
        """Inferences of the request."""
        return self._request.batch_size

    @property
    def priority(self) -> int:
        """Priority of the request."""
        return self._request.priority

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
        return sum([tensor.nbytes for tensor in self._request.inputs])

    @property
    def output_bytes(self) -> int:
        """Bytes of the outputs of the last response."""
        answer = self._answer
        return sum([tensor.nbytes for tensor in answer.outputs]) if isinstance(answer, InferResponse) else 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt of a language model."""
        return 0

    @property
    def completion_tokens(self) -> int:
        """Tokens that a language model generated."""
        return 0

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt from the prefix cache."""
        return 0

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


class PromptFacts(RequestFacts):
    """One prompt for a language model."""

    __slots__ = ("_prompt", "_usage")

    def __init__(self, of: ModelIdentity, prompt: GenerationRequest, end: Usage | ConchError | None = None) -> None:
        self._of = of
        self._prompt = prompt
        self._usage = end if isinstance(end, Usage) else None
        self._answer = None
        self._first_response = prompt.timeline.started
        self.error = end if isinstance(end, ConchError) else None
        self.cache_hit = False

    @property
    def timeline(self) -> Timeline:
        return self._prompt.timeline

    @property
    def parameters(self) -> Mapping[str, ParameterValue] | SamplingParams:
        return self._prompt.params

    @property
    def batch_size(self) -> int:
        return 1

    @property
    def priority(self) -> int:
        return self._prompt.priority

    @property
    def input_bytes(self) -> int:
        return 0

    @property
    def prompt_tokens(self) -> int:
        return 0 if self._usage is None else self._usage.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        return 0 if self._usage is None else self._usage.completion_tokens

    @property
    def cached_tokens(self) -> int:
        return 0 if self._usage is None else self._usage.cached_tokens


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
