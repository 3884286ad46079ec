"""The trace of a client's request, with a span for each model that executed a part of it.

The frontend begins it and ends it when the response is sent; `Pending` ends the spans. Only raw data are recorded here,
on the event loop; sinks compute the rest in another thread when the trace is complete.
"""

import re
from collections.abc import Callable
from secrets import randbits
from time import monotonic_ns
from typing import NamedTuple

from conch.base.errors import ConchError
from conch.domain.request import InferRequest, InferResponse, Respond, Timeline
from conch.domain.sliced_copy import MIN_SLICED_BYTES
from conch.domain.tensor import Tensor
from conch.server.observability.tracing.trace_settings import TraceRules

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_MAX_TRACESTATE_CHARACTERS = 512
# Per trace; the rest is omitted.
_MAX_MARKS = 1024
_MAX_SPANS = 1024
_MAX_COPIED_BYTES = 64 * 2**20
# Triton's names of activities for the reading of a request.
_READING = {
    "HTTP": ("HTTP_RECV_START", "HTTP_RECV_END"),
    "GRPC": ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
}


class RemoteContext(NamedTuple):
    """The W3C trace context of a request."""

    trace_id: int
    span_id: int
    sampled: bool
    state: str  # the header `tracestate`


def read_context(traceparent: str, tracestate: str = "") -> RemoteContext | None:
    """Parse the context in the two headers; None if it is missing or malformed."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    state = tracestate if len(tracestate) <= _MAX_TRACESTATE_CHARACTERS and tracestate.isascii() else ""
    return RemoteContext(int(match[1], 16), int(match[2], 16), bool(int(match[3], 16) & 1), state)


class TensorNote(NamedTuple):
    """A copy of a tensor, with the name of its activity."""

    activity: str
    tensor: Tensor


class Trace:
    """The trace of one client's request; `root` is its span.

    It is complete, and `done` is called, when the response has been sent and all spans have ended.
    """

    def __init__(
        self,
        protocol: str,
        model: str,
        timeline: Timeline,
        number: Callable[[], int],
        done: Callable[["Trace"], None],
        *,
        rules: TraceRules | None = None,
        remote: RemoteContext | None = None,
        distributed: bool = False,
    ) -> None:
        """Create a trace. `number` returns numbers for spans; `rules` are the settings that sampled the request.

        `distributed`: create the ids of distributed tracing.
        """
        self.protocol = protocol  # "HTTP" or "GRPC"
        self.rules = rules
        self.remote = remote
        self.number = number
        self.timestamps = rules is not None and "TIMESTAMPS" in rules.levels
        self.tensors = rules is not None and "TENSORS" in rules.levels
        self.distributed = distributed
        self.trace_id = remote.trace_id if remote is not None else randbits(128) if distributed else 0
        self.span_id: int = randbits(64) if distributed else 0  # of the client's whole request
        self.marks: list[tuple[str, int]] = []
        self.spans: list[ModelSpan] = []
        self.copied = 0  # bytes of tensors
        self.received = timeline.received
        self.closed = 0
        self._done = done
        self._open = 1  # the response, and the spans
        self.root = ModelSpan(self, None, model, timeline)

    @property
    def error(self) -> ConchError | None:
        """The error that the client received."""
        return self.root.error

    def read(self, request: InferRequest, version: int) -> None:
        """Record that a request has been decoded, for this version of its model."""
        request.span = self.began(version)

    def began(self, version: int) -> "ModelSpan":
        """Record that the client's request has been decoded, for this version of its model; return its span."""
        begin, end = _READING[self.protocol]
        self.root.begun = monotonic_ns()
        self.marks += ((begin, self.received), (end, self.root.begun))
        self.root.version = version
        return self.root

    def answered(self, error: ConchError | None) -> None:
        """Record that a response has been sent, for requests whose root span is not settled by `Pending`."""
        self.root.end(error)
        begin, end = f"{self.protocol}_SEND_START", f"{self.protocol}_SEND_END"
        self.marks += ((begin, self.root.timeline.done), (end, monotonic_ns()))
        self._end()

    def relay(self, respond: Respond) -> Respond:
        """Return a callback that calls `respond` and records when."""
        begin, end = f"{self.protocol}_SEND_START", f"{self.protocol}_SEND_END"

        def relayed(answer: InferResponse | ConchError | None, final: bool) -> None:
            started = monotonic_ns()
            respond(answer, final)
            if answer is not None:
                if len(self.marks) >= _MAX_MARKS:
                    del self.marks[-2:]  # keep the first ones and the last
                self.marks += ((begin, started), (end, monotonic_ns()))
            if final:
                self._end()

        return relayed

    def refused(self, error: ConchError) -> None:
        """Record that the request was not admitted, before or after the error is sent."""
        root = self.root
        if root.ended:
            return
        root.error = error
        root.timeline.done = root.timeline.done or monotonic_ns()
        root.ended = True
        self._open -= 1
        self._end()

    def opened(self, span: "ModelSpan") -> None:
        """Add a span."""
        self.spans.append(span)
        self._open += 1

    def ended(self) -> None:
        """Record the end of a span."""
        self._open -= 1
        if not self._open:
            self._done(self)

    def _end(self) -> None:
        self.closed = monotonic_ns()
        self.ended()


class ModelSpan:
    """The span of one model, an implementation of `conch.domain.request.Span`. Times are in its timeline."""

    __slots__ = (
        "_trace",
        "batch_requests",
        "batch_size",
        "begun",
        "cached",
        "completion_tokens",
        "ended",
        "error",
        "input_bytes",
        "model",
        "number",
        "output_bytes",
        "parent",
        "parent_id",
        "prompt_tokens",
        "request_id",
        "responses",
        "span_id",
        "tensors",
        "timeline",
        "version",
    )

    def __init__(self, trace: Trace, parent: "ModelSpan | None", model: str, timeline: Timeline) -> None:
        self.number = trace.number()
        self.parent = parent.number if parent is not None else 0
        self.parent_id = parent.span_id if parent is not None else trace.span_id
        self.span_id: int = randbits(64) if trace.distributed else 0
        self.model = model
        self.version = 0
        self.request_id = ""
        self.timeline = timeline
        self.begun = timeline.received  # when the request had been decoded
        self.batch_size = 0
        self.cached = False
        self.batch_requests = 0  # requests in its batch
        self.ended = False
        self.error: ConchError | None = None
        self.input_bytes = self.output_bytes = self.responses = 0
        self.prompt_tokens = self.completion_tokens = 0  # of language models and embedding models
        self.tensors: list[TensorNote] = []
        self._trace: Trace | None = trace
        trace.opened(self)

    @property
    def trace_id(self) -> str:
        """The trace that is exported: its id in hexadecimal digits, or the number of its root in a trace file."""
        trace = self._trace
        if trace is None or trace.rules is None:
            return ""
        return f"{trace.trace_id:032x}" if trace.distributed else str(trace.root.number)

    @property
    def context(self) -> str:
        """The W3C trace context for work on this request, as a JSON object; "" for none."""
        trace = self._trace
        if trace is None or not trace.distributed:
            return ""
        text = f'{{"traceparent":"00-{trace.trace_id:032x}-{self.span_id:016x}-01"'
        state = trace.remote.state if trace.remote is not None else ""
        if state and '"' not in state and "\\" not in state and state.isprintable():
            text += f',"tracestate":"{state}"'
        return text + "}"

    def child(self, request: InferRequest, version: int) -> None:
        """Attach a child span to a request that is made for this one."""
        trace = self._trace
        if trace is not None and len(trace.spans) < _MAX_SPANS:
            span = ModelSpan(trace, self, request.model_name, request.timeline)
            span.version = version
            request.span = span

    def hit(self) -> None:
        """Record that the response is from the cache."""
        self.cached = True

    @property
    def notes_tensors(self) -> bool:
        """Whether it records the bytes of inputs and outputs."""
        return self._trace is not None and self._trace.tensors

    def executed(self, requests: int) -> None:
        """Record the number of requests in the batch."""
        self.batch_requests = requests

    def responded(self, response: InferResponse) -> None:
        """Record a response."""
        self.responses += 1
        for tensor in response.outputs:
            self.output_bytes += tensor.nbytes
        self._copy("TENSOR_BACKEND_OUTPUT", response.outputs)

    def generated(self, timeline: Timeline, prompt_tokens: int, completion_tokens: int) -> None:
        """Record the tokens of one prompt; of several prompts the times are those of the last one."""
        self.timeline = timeline
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens

    def settled(
        self, request: InferRequest, answer: InferResponse | ConchError | None, failure: ConchError | None = None
    ) -> None:
        """Record the end of the request; `failure` is the first error before the final response."""
        if self.ended:
            return
        self.request_id = request.id
        self.batch_size = request.batch_size
        self.timeline = request.timeline
        for tensor in request.inputs:
            self.input_bytes += tensor.nbytes
        self._copy("TENSOR_QUEUE_INPUT", request.inputs)
        if isinstance(answer, ConchError):
            self.end(answer)
            return
        if answer is not None:
            self.responded(answer)
        self.end(failure)

    def end(self, error: ConchError | None) -> None:
        """End the span, with an error if any."""
        if self.ended:
            return
        self.ended = True
        self.error = error
        self.timeline.done = self.timeline.done or monotonic_ns()
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.ended()

    def _copy(self, activity: str, tensors: list[Tensor]) -> None:
        trace = self._trace
        if trace is None or not trace.tensors or trace.copied > _MAX_COPIED_BYTES:
            return
        for tensor in tensors:
            if tensor.source is not None:  # the request failed because the source is gone
                continue
            # Large ones are shared, because they are never written to.
            data = tensor.data if tensor.nbytes >= MIN_SLICED_BYTES else bytes(tensor.data)
            trace.copied += len(data)
            self.tensors.append(TensorNote(activity, Tensor(tensor.name, tensor.datatype, tensor.shape, data)))
