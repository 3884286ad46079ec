"""What travels through the server: one inference request, its responses, and the times of its life.

Names follow Triton's C API (`TRITONSERVER_InferenceRequest`, `…Response`). All times are `time.monotonic_ns()`.
"""

from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import ClassVar, Protocol, TypeAlias

from conch.errors import ConchError
from conch.tensor import Destination, Tensor

SEQUENCE_START = 1
SEQUENCE_END = 2

ParameterValue: TypeAlias = bool | int | float | str


class Timeline:
    """When each phase of a request ended, in nanoseconds of the monotonic clock; 0 where it has not come to pass.

    received → queued → started → input_done → infer_done → done. The gaps are Triton's durations: queue is
    started − queued, compute_input is input_done − started, compute_infer is infer_done − input_done,
    compute_output is done − infer_done, and the request as a whole is done − received.
    """

    __slots__ = ("done", "infer_done", "input_done", "queued", "received", "started")

    def __init__(self, received: int = 0) -> None:
        self.received = received or monotonic_ns()
        self.queued = 0
        self.started = 0
        self.input_done = 0
        self.infer_done = 0
        self.done = 0


class Caller(Protocol):
    """A model's call, to the requests that are made for it."""

    def check(self) -> None:
        """Refuse the call if it can only wait for itself. To be asked when a request of its has begun to wait."""


class Span(Protocol):
    """What is noted of a request while it is worked on, if anybody wants to know."""

    @property
    def context(self) -> str:
        """The W3C trace context to act in for this request, as a JSON object; "" where there is none."""

    @property
    def notes_tensors(self) -> bool:
        """Whether it needs the bytes of inputs and outputs."""

    def child(self, request: "InferRequest", version: int) -> None:
        """Have a request that is made for this one, for that version of its model, noted as well."""

    def hit(self) -> None:
        """Note that the answer is from the cache."""

    def executed(self, requests: int) -> None:
        """Note how many requests ran in one batch, this one among them."""

    def responded(self, response: "InferResponse") -> None:
        """Note a response that is not the last."""

    def generated(self, timeline: Timeline, prompt_tokens: int, completion_tokens: int) -> None:
        """Note what one prompt has come to, and when."""

    def settled(
        self,
        request: "InferRequest",
        answer: "InferResponse | ConchError | None",
        failure: ConchError | None = None,
    ) -> None:
        """Note the end of the request, its timeline being complete.

        `failure` is the first error that came before the final answer.
        """


class Admitted(Protocol):
    """An admitted request, to the frontend that sent it."""

    @property
    def cancelled(self) -> bool:
        """Whether it has ended, so that no answer is awaited any more."""

    def cancel(self) -> None:
        """End the request because the client takes no answer any more. Does nothing if it has ended."""


class InferRequest:
    """One request for one model, decoded and transport-free.

    `version` None means the newest ready one. `outputs` empty means all. `timeout_us` 0 means none; `priority` 0 means
    the model's default. `correlation_id` 0 or "" means that the request belongs to no sequence.
    `batch_size` is set by validation: the first dimension for batching models, else 1. `caller` is the call of a model
    that it serves, None for a client's. `span` notes what becomes of it, None if nobody wants to know. Outputs that the
    client wants in its own memory have `destinations`: whoever makes them may put them there.
    """

    # Whether it is part of a request that is admitted, so that no queue may refuse it for lack of room.
    admitted: ClassVar[bool] = False

    __slots__ = (
        "batch_size",
        "caller",
        "correlation_id",
        "destinations",
        "flags",
        "id",
        "inputs",
        "model_name",
        "outputs",
        "parameters",
        "priority",
        "span",
        "timeline",
        "timeout_us",
        "version",
    )

    def __init__(
        self,
        model_name: str,
        inputs: list[Tensor],
        *,
        version: int | None = None,
        id: str = "",  # noqa: A002 - the protocol's own name
        outputs: tuple[str, ...] = (),
        parameters: dict[str, ParameterValue] | None = None,
        correlation_id: int | str = 0,
        flags: int = 0,
        priority: int = 0,
        timeout_us: int = 0,
        timeline: Timeline | None = None,
    ) -> None:
        self.model_name = model_name
        self.version = version
        self.id = id
        self.inputs = inputs
        self.outputs = outputs
        self.parameters = parameters if parameters is not None else {}
        self.correlation_id = correlation_id
        self.flags = flags
        self.priority = priority
        self.timeout_us = timeout_us
        self.batch_size = 1
        self.caller: Caller | None = None
        self.destinations: Mapping[str, Destination] | None = None
        self.span: Span | None = None
        self.timeline = timeline or Timeline()

    def __repr__(self) -> str:
        version = "" if self.version is None else f"/{self.version}"
        return f"InferRequest({self.model_name}{version}, id={self.id!r}, inputs={self.inputs})"

    def with_inputs(self, inputs: list[Tensor], timeline: Timeline | None = None) -> "InferRequest":
        """Return a request that asks the same of other inputs, with parameters of its own."""
        return InferRequest(
            self.model_name,
            inputs,
            version=self.version,
            id=self.id,
            outputs=self.outputs,
            parameters=dict(self.parameters),
            correlation_id=self.correlation_id,
            flags=self.flags,
            priority=self.priority,
            timeout_us=self.timeout_us,
            timeline=timeline,
        )

    @property
    def has_sources(self) -> bool:
        """Whether the bytes of some input are still to be fetched."""
        for tensor in self.inputs:  # noqa: SIM110 - a generator costs more
            if tensor.source is not None:
                return True
        return False

    def fetch_inputs(self) -> None:
        """Have the bytes of all inputs here. Raises ConchError if some have gone from their source."""
        for tensor in self.inputs:
            if tensor.source is not None:
                tensor.fetch()

    def input(self, name: str) -> Tensor | None:
        """Return the input of that name, if the request carries it."""
        for tensor in self.inputs:
            if tensor.name == name:
                return tensor
        return None


class StepRequest(InferRequest):
    """A request that an ensemble makes on behalf of one that it has admitted."""

    admitted = True
    __slots__ = ()


class InferResponse:
    """One response: outputs in the order in which the model gave them."""

    __slots__ = ("id", "model_name", "model_version", "outputs", "parameters")

    def __init__(
        self,
        model_name: str,
        model_version: int,
        outputs: list[Tensor],
        *,
        id: str = "",  # noqa: A002 - the protocol's own name
        parameters: dict[str, ParameterValue] | None = None,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.outputs = outputs
        self.parameters = parameters if parameters is not None else {}

    def __repr__(self) -> str:
        return f"InferResponse({self.model_name}/{self.model_version}, id={self.id!r}, outputs={self.outputs})"

    def output(self, name: str) -> Tensor | None:
        """Return the output of that name, if the response carries it."""
        for tensor in self.outputs:
            if tensor.name == name:
                return tensor
        return None


# How a caller receives what becomes of its request. Called on the event loop with (answer, final): zero or more times
# with final False, then exactly once with final True. Only the final call ends the request: a decoupled model may send
# an error and further responses after it. The final call carries a response, an error, or None where a decoupled model
# ends its responses by the flag alone. It must not raise and must not block.
Respond: TypeAlias = Callable[[InferResponse | ConchError | None, bool], None]
