"""ModelInfer without the wire: one serialized request in, one serialized response or error out."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from conch.core.inference import Inference
from conch.core.pending import Pending
from conch.core.served import Served
from conch.errors import ConchError, ConfigError, InvalidRequest, Unsupported
from conch.observability.observer import Observer
from conch.observability.request_trace import Trace
from conch.protocol.classification import classify
from conch.protocol.regions import NO_REGIONS, Regions, placed
from conch.protocol.repeated_proto import RepeatedRequests, RepeatedResponses, RequestMessage
from conch.protocol.v2_proto import ResponseOptions
from conch.protocol.v2_proto_parameters import is_reserved
from conch.request import InferRequest, InferResponse, ParameterValue, Timeline
from conch.tensor import Buffer

# Keys are lower case; values of keys that end in "-bin" are bytes.
Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
# A serialized message in parts, or what went wrong.
Reply: TypeAlias = Callable[[Sequence[Buffer] | ConchError], None]


# The metadata of the W3C trace context.
_CONTEXT = ("traceparent", "tracestate")


class ForwardedHeaders:
    """`--grpc-header-forward-pattern`: metadata whose keys match become parameters of the request."""

    def __init__(self, pattern: str) -> None:
        """Take a regular expression; the empty one matches nothing. Raises ConfigError if it is none."""
        try:
            self._pattern = re.compile(pattern) if pattern else None
        except re.error as error:
            raise ConfigError(f"--grpc-header-forward-pattern: '{pattern}' is no regular expression: {error}") from None

    def add(self, parameters: dict[str, ParameterValue], metadata: Metadata) -> None:
        """Add the metadata to forward. Raises InvalidRequest for a key that a parameter must not have."""
        if self._pattern is None:
            return
        for key, value in metadata:
            if isinstance(value, bytes) or not self._pattern.search(key):
                continue
            if is_reserved(key):
                raise InvalidRequest(f"header '{key}' cannot be forwarded: as a parameter its name is reserved")
            parameters[key] = value


class InferEndpoint:
    """What ModelInfer and ModelStreamInfer share, and ModelInfer."""

    def __init__(
        self,
        inference: Inference,
        forwarded: ForwardedHeaders,
        regions: Regions = NO_REGIONS,
        observer: Observer | None = None,
    ) -> None:
        self.inference = inference
        self.observer = observer or Observer()
        self._forwarded = forwarded
        self._regions = regions
        self._requests = RepeatedRequests()
        self.responses = RepeatedResponses()

    def read(self, data: Buffer) -> RequestMessage:
        """Read a serialized request. Raises InvalidRequest if it is none."""
        return self._requests.read(data)

    def decode(
        self, message: RequestMessage, metadata: Metadata, timeline: Timeline
    ) -> tuple[InferRequest, ResponseOptions]:
        """Return the request with the headers that go with it. Raises ConchError."""
        request, options = message.decode(timeline, self._regions)
        self._forwarded.add(request.parameters, metadata)
        return request, options

    def infer(self, data: Buffer, metadata: Metadata, reply: Reply) -> Pending:
        """Serve one ModelInfer call: `reply` gets its response or error, once, later or before this returns.

        Raises ConchError if the request is refused; then `reply` is not called.
        """
        timeline = Timeline()
        message = self.read(data)
        trace = self.begin(message.model_name, metadata, timeline) if self.observer.on else None
        try:
            return self._infer(message, metadata, reply, timeline, trace)
        except ConchError as error:
            if trace is not None:
                trace.refused(error)
            raise

    def begin(self, model: str, metadata: Metadata, timeline: Timeline) -> Trace | None:
        """Begin the trace of a request, if anybody wants to know of it."""
        found = {key: value for key, value in metadata if key in _CONTEXT and isinstance(value, str)}
        return self.observer.begin("GRPC", model, timeline, *(found.get(key, "") for key in _CONTEXT))

    def _infer(
        self, message: RequestMessage, metadata: Metadata, reply: Reply, timeline: Timeline, trace: Trace | None
    ) -> Pending:
        model = self.inference.model(message.model_name, message.version())
        if model.config.decoupled:
            raise Unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
        model.check_room(timeline)
        request, options = self.decode(message, metadata, timeline)

        def respond(answer: InferResponse | ConchError | None, final: bool) -> None:
            if final:
                reply(self._encode(answer, model, options))

        if trace is None:
            return self.inference.infer(request, respond)
        trace.read(request, model.version)
        return self.inference.infer(request, trace.relay(respond))

    def _encode(
        self, answer: InferResponse | ConchError | None, model: Served, options: ResponseOptions
    ) -> Sequence[Buffer] | ConchError:
        if isinstance(answer, InferResponse):
            try:
                return self.responses.encode(as_wanted(answer, model, options))
            except ConchError as error:
                return error
        return answer or ConchError(f"model '{model.config.name}' ended the request without a response")


def as_wanted(response: InferResponse, model: Served, options: ResponseOptions) -> InferResponse:
    """Return the response as it is to be sent: with classes for outputs, or without what goes into shared memory.

    Raises ConchError if an output does not lend itself to that.
    """
    if options.classification:
        response = _classified(response, model, options.classification)
    if options.parts:
        response = placed(response, options.parts)
    return response


def _classified(response: InferResponse, model: Served, wanted: Mapping[str, int]) -> InferResponse:
    batched = model.config.max_batch_size > 0
    outputs = [
        classify(tensor, wanted[tensor.name], model.labels.get(tensor.name, ()), batched)
        if tensor.name in wanted
        else tensor
        for tensor in response.outputs
    ]
    return InferResponse(
        response.model_name, response.model_version, outputs, id=response.id, parameters=response.parameters
    )
