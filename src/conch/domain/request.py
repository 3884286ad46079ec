# Compiled by mypyc in wheels.
"""Inference requests, their responses and timelines.

Names follow Triton's C API (`TRITONSERVER_InferenceRequest`, `…Response`). All times are `time.monotonic_ns()`.
"""

from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import ClassVar, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from conch.base.errors import ConchError, Unsupported
from conch.domain.tensor import Destination, Tensor

SEQUENCE_START: Final = 1
SEQUENCE_END: Final = 2

ParameterValue: TypeAlias = bool | int | float | str

# Allocates that many bytes, or returns None; may be called in any thread.
Room: TypeAlias = Callable[[int], npt.NDArray[np.uint8] | None]


MAX_CORRELATION_ID_BYTES: Final = 128


def checked_correlation_id(text: str) -> str:
    """Return a string correlation ID. Raises Unsupported, as Triton does, if it is too long."""
    if len(text) > MAX_CORRELATION_ID_BYTES or len(text.encode()) > MAX_CORRELATION_ID_BYTES:
        raise Unsupported(f"string correlation ID cannot be longer than {MAX_CORRELATION_ID_BYTES} characters")
    return text


class Timeline:
    """When each phase of a request ended, in nanoseconds of the monotonic clock; 0 if it has not ended.

    received → queued → started → input_done → infer_done → done. The differences are Triton's durations: queue is
    started − queued, compute_input is input_done − started, compute_infer is infer_done − input_done,
    compute_output is done − infer_done, and the whole request is done − received.

    `deadline` is when the client stops waiting for the end of the response, `first_token_by` for its first token; 0 for
    never.
    """

    __slots__ = (
        "deadline",
        "done",
        "exchange",
        "first_token_by",
        "infer_done",
        "input_done",
        "queued",
        "received",
        "started",
    )

    def __init__(self, received: int = 0) -> None:
        self.received = received or monotonic_ns()
        self.queued = 0
        self.started = 0
        self.input_done = 0
        self.infer_done = 0
        self.done = 0
        self.deadline = 0
        self.first_token_by = 0
        self.exchange = 0  # number of the client's call in the event log

    def part(self) -> "Timeline":
        """Return the timeline of a request for a part of the response."""
        part = Timeline(self.received)
        part.deadline, part.first_token_by = self.deadline, self.first_token_by
        part.exchange = self.exchange
        return part


class Caller(Protocol):
    """The BLS call of a model, for the requests that it makes."""

    def check(self) -> None:
        """Fail the call if it is part of a cycle of waiting calls. To be called when one of its requests is queued."""


class Span(Protocol):
    """Recorder of one request for traces and the request log."""

    @property
    def context(self) -> str:
        """The W3C trace context for work on this request, as a JSON object; "" for none."""

    @property
    def trace_id(self) -> str:
        """The trace that is exported, for exemplars of metrics; "" for none."""

    @property
    def notes_tensors(self) -> bool:
        """Whether it records the bytes of inputs and outputs."""

    def child(self, request: "InferRequest", version: int) -> None:
        """Attach a child span to a request that is made for this one, to a version of its model."""

    def hit(self) -> None:
        """Record that the response is from the cache."""

    def executed(self, requests: int) -> None:
        """Record the number of requests in the batch."""

    def responded(self, response: "InferResponse") -> None:
        """Record a response that is not the last."""

    def generated(self, timeline: Timeline, prompt_tokens: int, completion_tokens: int) -> None:
        """Record the times and tokens of one prompt."""

    def settled(
        self,
        request: "InferRequest",
        answer: "InferResponse | ConchError | None",
        failure: ConchError | None = None,
    ) -> None:
        """Record the end of the request; its timeline is complete.

        `failure` is the first error before the final response.
        """


class TokenMeter(Protocol):
    """Counts the tokens of a request towards limits and rates, and says whose request it is."""

    @property
    def tenant(self) -> str:
        """The name of the tenant, "" for none."""

    @property
    def weight(self) -> int:
        """The tenant's share where requests of several tenants wait."""

    def stage(self, model: str, version: str) -> "TokenMeter":
        """Return the meter of a stage, if the request is one of an ensemble."""

    def add_tokens(self, count: int, now: int) -> None:
        """Count tokens of the prompt or the answer; `now` is of the clock of timelines."""


def tenant_of(meter: TokenMeter | None) -> str:
    """Return the name of a request's tenant, "" for none."""
    return "" if meter is None else meter.tenant


class Admitted(Protocol):
    """An admitted request, for the frontend that submitted it."""

    @property
    def cancelled(self) -> bool:
        """Whether the request has ended, so that responses are discarded."""

    def cancel(self) -> None:
        """Cancel the request; a no-op if it has ended."""


class InferRequest:
    """One decoded request for one model, independent of the transport.

    `version` None is the latest ready one. `outputs` empty means all. `timeout_us` 0 means none; `priority` 0 means the
    model's default. `correlation_id` 0 or "" means that the request is not part of a sequence.
    `batch_size` is set by validation: the first dimension for batching models, else 1. `caller` is the BLS call that
    made the request, None for a client's. `span` records it for traces, None for none. `destinations` are the client's
    shared memory for outputs, to which a backend may write directly. `rooms` allocate memory for outputs, which
    need not use it, where their only reader maps it. `meter` counts its tokens, None if nothing does.
    """

    # Whether it is part of an admitted request, so that a full queue must not refuse it.
    admitted: ClassVar[bool] = False

    __slots__ = (
        "batch_size",
        "caller",
        "correlation_id",
        "destinations",
        "flags",
        "id",
        "inputs",
        "meter",
        "model_name",
        "number",
        "outputs",
        "parameters",
        "parent",
        "priority",
        "rooms",
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
        self.number = 0  # in the event log, set when it is admitted
        self.parent = 0  # number of the request on whose behalf it is made
        self.caller: Caller | None = None
        self.destinations: Mapping[str, Destination] | None = None
        self.rooms: Mapping[str, Room] | None = None
        self.span: Span | None = None
        self.meter: TokenMeter | None = None
        self.timeline = timeline or Timeline()

    def __repr__(self) -> str:
        version = "" if self.version is None else f"/{self.version}"
        return f"InferRequest({self.model_name}{version}, id={self.id!r}, inputs={self.inputs})"

    def with_inputs(self, inputs: list[Tensor], timeline: Timeline | None = None) -> "InferRequest":
        """Return a copy of the request with other inputs; parameters are copied too."""
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
        """Whether the bytes of an input are not fetched yet."""
        for tensor in self.inputs:  # noqa: SIM110 - a generator costs more
            if tensor.source is not None:
                return True
        return False

    def fetch_inputs(self) -> None:
        """Fetch the bytes of all inputs. Raises ConchError if a source is gone."""
        for tensor in self.inputs:
            if tensor.source is not None:
                tensor.fetch()

    def input(self, name: str) -> Tensor | None:
        """Return the input of that name, or None."""
        for tensor in self.inputs:
            if tensor.name == name:
                return tensor
        return None


class StepRequest(InferRequest):
    """A request of an ensemble to one of its steps."""

    admitted = True
    __slots__ = ()


class InferResponse:
    """One response, with outputs in the model's order."""

    __slots__ = ("degraded", "id", "model_name", "model_version", "outputs", "parameters")

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
        self.degraded = ""  # the reason why it is worse than asked, of `conch.domain.degradations`

    def __repr__(self) -> str:
        return f"InferResponse({self.model_name}/{self.model_version}, id={self.id!r}, outputs={self.outputs})"

    def output(self, name: str) -> Tensor | None:
        """Return the output of that name, or None."""
        for tensor in self.outputs:
            if tensor.name == name:
                return tensor
        return None


# Callback for the responses of a request, on the event loop: called with (answer, final), zero or more times with final
# False, then exactly once with final True. Only the final call ends the request: a decoupled model may send responses
# after an error. The final answer is a response, an error, or None if a decoupled model only sends the final flag.
# It must not raise and must not block.
Respond: TypeAlias = Callable[[InferResponse | ConchError | None, bool], None]
