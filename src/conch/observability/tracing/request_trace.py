"""What is noted of one request of a client's: a trace, with a span for each model that worked on it.

The frontend begins it and says when the answer has gone, `Pending` tells each span how its request ended. Nothing is
computed here that could be computed later: whoever writes a trace down does so in another thread, when it is complete.
"""

import re
from collections.abc import Callable
from secrets import randbits
from time import monotonic_ns
from typing import NamedTuple

from conch.errors import ConchError
from conch.observability.tracing.trace_settings import TraceRules
from conch.request import InferRequest, InferResponse, Respond, Timeline
from conch.sliced_copy import MIN_SLICED_BYTES
from conch.tensor import Tensor

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_TRACESTATE_LIMIT = 512
# What is noted of one request is bounded; what goes beyond is left out.
_MOST_MARKS = 1024
_MOST_SPANS = 1024
_MOST_COPIED = 64 * 2**20
# How each protocol's frontend calls the reading of a request.
_READING = {
    "HTTP": ("HTTP_RECV_START", "HTTP_RECV_END"),
    "GRPC": ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END"),
}


class RemoteContext(NamedTuple):
    """The W3C trace context that came with a request."""

    trace_id: int
    span_id: int
    sampled: bool
    state: str  # of `tracestate`, as it came


def read_context(traceparent: str, tracestate: str = "") -> RemoteContext | None:
    """Return the context that the two headers tell of, None if there is none or it is malformed."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    state = tracestate if len(tracestate) <= _TRACESTATE_LIMIT and tracestate.isascii() else ""
    return RemoteContext(int(match[1], 16), int(match[2], 16), bool(int(match[3], 16) & 1), state)


class TensorNote(NamedTuple):
    """A tensor as it was: the activity that had it, and a copy of its bytes."""

    activity: str
    tensor: Tensor


class Trace:
    """One client's request and all that was done for it; `root` is its span.

    It is complete, and told to `done`, when the client's answer has gone and every span has ended.
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
        """Assign. `number` gives numbers to spans; `rules` are those by which the request was chosen.

        `distributed`: it gets ids by which traces of other processes know it.
        """
        self.protocol = protocol  # "HTTP" or "GRPC"
        self.rules = rules
        self.remote = remote
        self.number = number
        self.timestamps = rules is not None and "TIMESTAMPS" in rules.levels
        self.tensors = rules is not None and "TENSORS" in rules.levels
        self.distributed = distributed
        self.trace_id = remote.trace_id if remote is not None else randbits(128) if distributed else 0
        self.span_id: int = randbits(64) if distributed else 0  # of the request as the client sees it
        self.marks: list[tuple[str, int]] = []
        self.spans: list[ModelSpan] = []
        self.copied = 0  # bytes of tensors
        self.received = timeline.received
        self.closed = 0
        self._done = done
        self._open = 1  # the client's answer, and the spans
        self.root = ModelSpan(self, None, model, timeline)

    @property
    def error(self) -> ConchError | None:
        """What the client was answered in place of a result."""
        return self.root.error

    def read(self, request: InferRequest, version: int) -> None:
        """Note that a request has been read, for the version of the model that it goes to."""
        request.span = self.began(version)

    def began(self, version: int) -> "ModelSpan":
        """Note that what the client has sent has been read, for that version of the model; return its span."""
        begin, end = _READING[self.protocol]
        self.root.begun = monotonic_ns()
        self.marks += ((begin, self.received), (end, self.root.begun))
        self.root.version = version
        return self.root

    def answered(self, error: ConchError | None) -> None:
        """Note that the client has been answered, where nobody has settled the root span."""
        self.root.end(error)
        begin, end = f"{self.protocol}_SEND_START", f"{self.protocol}_SEND_END"
        self.marks += ((begin, self.root.timeline.done), (end, monotonic_ns()))
        self._end()

    def relay(self, respond: Respond) -> Respond:
        """Return what answers in place of `respond`, and notes when."""
        begin, end = f"{self.protocol}_SEND_START", f"{self.protocol}_SEND_END"

        def relayed(answer: InferResponse | ConchError | None, final: bool) -> None:
            started = monotonic_ns()
            respond(answer, final)
            if answer is not None:
                if len(self.marks) >= _MOST_MARKS:
                    del self.marks[-2:]  # of very many responses the first ones and the last
                self.marks += ((begin, started), (end, monotonic_ns()))
            if final:
                self._end()

        return relayed

    def refused(self, error: ConchError) -> None:
        """Note that the request was not admitted, and has been, or is about to be, answered so."""
        root = self.root
        if root.ended:
            return
        root.error = error
        root.timeline.done = root.timeline.done or monotonic_ns()
        root.ended = True
        self._open -= 1
        self._end()

    def opened(self, span: "ModelSpan") -> None:
        """Wait for a span, too."""
        self.spans.append(span)
        self._open += 1

    def ended(self) -> None:
        """Note that a span has ended."""
        self._open -= 1
        if not self._open:
            self._done(self)

    def _end(self) -> None:
        self.closed = monotonic_ns()
        self.ended()


class ModelSpan:
    """What one model did for a request; what `request.Span` asks for. Times are in its timeline."""

    __slots__ = (
        "_trace",
        "batch_size",
        "begun",
        "cached",
        "completion_tokens",
        "ended",
        "error",
        "executed_together",
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
        self.parent = parent.number if parent is not None else 0  # number of the span that it was made for
        self.parent_id = parent.span_id if parent is not None else trace.span_id
        self.span_id: int = randbits(64) if trace.distributed else 0
        self.model = model
        self.version = 0
        self.request_id = ""
        self.timeline = timeline
        self.begun = timeline.received  # when the request had been read
        self.batch_size = 0
        self.cached = False
        self.executed_together = 0  # how many requests were in its batch
        self.ended = False
        self.error: ConchError | None = None
        self.input_bytes = self.output_bytes = self.responses = 0
        self.prompt_tokens = self.completion_tokens = 0  # of a model that generates or makes embeddings
        self.tensors: list[TensorNote] = []
        self._trace: Trace | None = trace
        trace.opened(self)

    @property
    def context(self) -> str:
        """The W3C trace context to act in for this request, as a JSON object; "" where there is none."""
        trace = self._trace
        if trace is None or not trace.distributed:
            return ""
        text = f'{{"traceparent":"00-{trace.trace_id:032x}-{self.span_id:016x}-01"'
        state = trace.remote.state if trace.remote is not None else ""
        if state and '"' not in state and "\\" not in state and state.isprintable():
            text += f',"tracestate":"{state}"'
        return text + "}"

    def child(self, request: InferRequest, version: int) -> None:
        """Have a request that is made for this one noted as well."""
        trace = self._trace
        if trace is not None and len(trace.spans) < _MOST_SPANS:
            span = ModelSpan(trace, self, request.model_name, request.timeline)
            span.version = version
            request.span = span

    def hit(self) -> None:
        """Note that the answer is from the cache."""
        self.cached = True

    @property
    def notes_tensors(self) -> bool:
        """Whether it needs the bytes of inputs and outputs."""
        return self._trace is not None and self._trace.tensors

    def executed(self, requests: int) -> None:
        """Note how many requests ran in one batch."""
        self.executed_together = requests

    def responded(self, response: InferResponse) -> None:
        """Note one response."""
        self.responses += 1
        for tensor in response.outputs:
            self.output_bytes += tensor.nbytes
        self._copy("TENSOR_BACKEND_OUTPUT", response.outputs)

    def generated(self, timeline: Timeline, prompt_tokens: int, completion_tokens: int) -> None:
        """Note what one prompt has come to, of a request that may have several: the times are the last one's."""
        self.timeline = timeline
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens

    def settled(
        self, request: InferRequest, answer: InferResponse | ConchError | None, failure: ConchError | None = None
    ) -> None:
        """Note the end of the request; `failure` is the first error among the responses before the last."""
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
        """Note the end, with what went wrong if something did."""
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
        if trace is None or not trace.tensors or trace.copied > _MOST_COPIED:
            return
        for tensor in tensors:
            if tensor.source is not None:  # a request that failed because the bytes have gone
                continue
            # Large ones are shared: nothing writes to them.
            data = tensor.data if tensor.nbytes >= MIN_SLICED_BYTES else bytes(tensor.data)
            trace.copied += len(data)
            self.tensors.append(TensorNote(activity, Tensor(tensor.name, tensor.datatype, tensor.shape, data)))
