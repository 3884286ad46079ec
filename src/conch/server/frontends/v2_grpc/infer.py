# Compiled by mypyc in wheels.
"""ModelInfer without the wire: one serialized request in, one serialized response or error out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

from conch.base.errors import ConchError, Exhausted, QueueFull, Unsupported
from conch.domain.request import Admitted, InferRequest, InferResponse, Timeline, TokenMeter
from conch.domain.tensor import BYTES, Buffer, Tensor
from conch.domain.triton_messages import service_pb2
from conch.protocols.classification import classify
from conch.protocols.compression import MAX_RATIO
from conch.protocols.connections.body_budget import UNCHARGED_BYTES, BodyBudget
from conch.protocols.http2.flow_control import Http2Stream
from conch.protocols.regions import Regions, write_outputs
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.protocols.v2_proto.inference import InferMessage, ResponseOptions, split_fields
from conch.protocols.v2_proto.large import is_large
from conch.protocols.v2_proto.parameters import is_reserved
from conch.protocols.v2_proto.request_cache import ProtoRequestCache, ProtoResponseCache, RequestMessage
from conch.server.core.inference import Inference
from conch.server.core.served_model import ServedModel
from conch.server.frontends.grpc.framing import MAX_DECOMPRESSED_BYTES, Compressed
from conch.server.frontends.grpc.status import no_memory
from conch.server.frontends.offload.pool import Job, OffloadPool, Outcome
from conch.server.frontends.parts import Parts
from conch.server.frontends.request_headers import ForwardedHeaders, Tenants
from conch.server.observability.tracing.observer import Observer
from conch.server.observability.tracing.request_trace import Trace

# Keys are lower case; values of keys that end in "-bin" are bytes.
Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
# A serialized message in parts, or what went wrong.
Reply: TypeAlias = Callable[[Sequence[Buffer] | ConchError], None]

# Values up to this size are classified on the event loop.
_MAX_CLASSIFIED_BYTES: Final = 16 * 1024
# The metadata of the W3C trace context.
_TRACE_CONTEXT_KEYS = ("traceparent", "tracestate")
_NO_OPTIONS: Final = ResponseOptions()
# Metadata by which a client asks where the time goes, and which says so in trailers.
WHY: Final = b"x-conch-why"


class Cancellable(Protocol):
    """A request in flight."""

    def cancel(self) -> None:
        """Cancel: no answer is needed."""


class GrpcInferEndpoint:
    """Serves ModelInfer, and holds what it shares with ModelStreamInfer. Large messages are decoded by the `pool`."""

    def __init__(self, parts: Parts) -> None:
        """Create the endpoint. Raises ConfigError for an invalid pattern of headers to forward."""
        self.inference: Inference = parts.inference
        self.observer: Observer = parts.observer
        self.recorder = parts.recorder
        self._tenants: Tenants = parts.tenants
        self._forwarded = ForwardedHeaders(
            parts.options.grpc_header_forward_pattern,
            is_reserved,
            flag="--grpc-header-forward-pattern",
            secret=parts.secret_headers,
        )
        self._regions: Regions = parts.regions
        self._pool: OffloadPool = parts.codecs
        self._budget: BodyBudget = parts.budget
        self._requests = ProtoRequestCache()
        self.responses = ProtoResponseCache()

    def read(self, data: Buffer) -> RequestMessage:
        """Read a serialized request. Raises InvalidRequest if it is malformed."""
        return self._requests.read(data)

    def check_room(
        self, model: ServedModel, message: RequestMessage, metadata: Metadata, timeline: Timeline
    ) -> TokenMeter | None:
        """Refuse a request for which there is no room, before its tensors are read; count it towards the limits.

        Returns where its tokens count. Raises QueueFull, DeadlineMissed, LimitExceeded.
        """
        try:
            if self.inference.limiter is not None:
                return self.inference.admit(model, timeline, self._tenants.of_grpc(metadata))
            model.check_room(timeline)
        except QueueFull as error:
            raise error.of_request(message.id) from None
        return None

    def decode(
        self, message: RequestMessage, metadata: Metadata, timeline: Timeline
    ) -> tuple[InferRequest, ResponseOptions]:
        """Return the request with the headers that go with it. Raises ConchError."""
        request, options = message.decode(timeline, self._regions)
        self._forwarded.add(request.parameters, metadata)
        return request, options

    def client(self, metadata: Metadata, peer: str) -> str:
        """Return the client in whose turn worker processes work for a call."""
        return self._tenants.client_of_grpc(metadata, peer)

    def read_large(
        self, data: Buffer | Compressed, done: Callable[[RequestMessage | ConchError], None], client: Callable[[], str]
    ) -> Job | None:
        """Have a worker process decode a large message and call `done`; return None for any other message.

        Raises InvalidRequest for a message with too many fields, Unavailable.
        """
        if isinstance(data, Compressed):
            coding, body = data.coding.decode("latin-1"), data.data
            size = min(len(body) * MAX_RATIO, MAX_DECOMPRESSED_BYTES)
        elif len(data) <= MAX_INLINE_BYTES or not is_large(data):
            return None
        else:
            coding, body, size = "", data, len(data)
        read = partial(self._on_large_read, coding, body, done)
        return self._pool.submit("infer_message", {"coding": coding}, [body], read, client=client(), size=size)

    def _on_large_read(
        self,
        coding: str,
        body: Buffer,
        done: Callable[[RequestMessage | ConchError], None],
        outcome: Outcome | ConchError,
    ) -> None:
        try:
            if coding and not isinstance(outcome, ConchError):
                outcome = outcome._replace(parts=[self._charged(part) for part in outcome.parts])
            done(outcome if isinstance(outcome, ConchError) else _joined(outcome, body))
        except ConchError as error:
            done(error)
            error.__traceback__ = None  # which refers to frames that refer to the error

    def _charged(self, plain: memoryview) -> memoryview:
        """Charge decompressed data until they are freed. Raises Exhausted."""
        if len(plain) <= UNCHARGED_BYTES:
            return plain
        kept = self._budget.charge_until_freed(plain)
        if kept is None:
            raise Exhausted(no_memory().message)
        return memoryview(kept)

    def infer(
        self,
        data: Buffer | Compressed,
        metadata: Metadata,
        reply: Reply,
        timeline: Timeline,
        stream: Http2Stream | None = None,
    ) -> Cancellable:
        """Serve one ModelInfer call: `reply` gets its response or error, once, later or before this returns.

        Raises ConchError if the request is refused; then `reply` is not called.
        """
        call = _InferCall(self, metadata, reply, timeline, stream)
        if len(data) > MAX_INLINE_BYTES or isinstance(data, Compressed):
            call.stage = self.read_large(data, call.continue_with, call.client)
            if call.stage is not None:
                return call
        assert not isinstance(data, Compressed)
        return call.serve(self.read(data))

    def begin_trace(self, model: str, metadata: Metadata, timeline: Timeline) -> Trace | None:
        """Begin the trace of a request; None if it is not sampled."""
        context = {key: value for key, value in metadata if key in _TRACE_CONTEXT_KEYS and isinstance(value, str)}
        return self.observer.begin("GRPC", model, timeline, *(context.get(key, "") for key in _TRACE_CONTEXT_KEYS))

    def classify(
        self,
        response: InferResponse,
        model: ServedModel,
        options: ResponseOptions,
        done: Callable[[InferResponse | ConchError], None],
        client: Callable[[], str],
    ) -> None:
        """Replace outputs by their classes and call `done`: now or, for many values, later, by a worker process."""
        requested = options.classification
        batched = model.config.max_batch_size > 0
        large = sum(tensor.nbytes for tensor in response.outputs if tensor.name in requested) > _MAX_CLASSIFIED_BYTES
        try:
            if large:
                chosen = [tensor for tensor in response.outputs if tensor.name in requested]
                described = [
                    {
                        "name": tensor.name,
                        "datatype": tensor.datatype,
                        "shape": tensor.shape,
                        "count": requested[tensor.name],
                        "labels": [*model.labels.get(tensor.name, ())],
                    }
                    for tensor in chosen
                ]
                args = {"tensors": described, "batched": batched}
                parts = [tensor.data for tensor in chosen]
                read = partial(_finish_classes, response, chosen, done)
                self._pool.submit("classify", args, parts, read, client=client())
                return
            classified: InferResponse | ConchError = _replace_outputs(
                response,
                {
                    tensor.name: classify(tensor, requested[tensor.name], model.labels.get(tensor.name, ()), batched)
                    for tensor in response.outputs
                    if tensor.name in requested
                },
            )
        except ConchError as error:
            classified = error
        done(classified)


class _InferCall:
    """One ModelInfer call. One that a worker process decodes can be cancelled before or after it is admitted."""

    __slots__ = (
        "_cancelled",
        "_endpoint",
        "_metadata",
        "_model",
        "_options",
        "_reply",
        "_stream",
        "_timeline",
        "stage",
    )

    def __init__(
        self,
        endpoint: GrpcInferEndpoint,
        metadata: Metadata,
        reply: Reply,
        timeline: Timeline,
        stream: Http2Stream | None,
    ) -> None:
        self._endpoint = endpoint
        self._metadata = metadata
        self._reply = reply
        self._stream = stream
        self._timeline = timeline
        self._model: ServedModel | None = None
        self._options = _NO_OPTIONS
        self._cancelled = False
        self.stage: Cancellable | None = None  # of a large message: the job of the worker, then the request

    def cancel(self) -> None:
        """Cancel the current stage."""
        self._cancelled = True
        if self.stage is not None:
            self.stage.cancel()

    def client(self) -> str:
        """Return the client in whose turn worker processes work for this call."""
        return self._endpoint.client(self._metadata, "" if self._stream is None else self._stream.peer)

    def continue_with(self, message: RequestMessage | ConchError) -> None:
        """Continue with a request that a worker process has decoded."""
        if self._cancelled:
            return
        try:
            if isinstance(message, ConchError):
                raise message
            self.stage = self.serve(message)
        except ConchError as error:
            self._reply(error)

    def serve(self, message: RequestMessage) -> Admitted:
        """Admit a request. Raises ConchError."""
        endpoint = self._endpoint
        if not endpoint.observer.on:
            return self._admit(message, None)
        trace = endpoint.begin_trace(message.model_name, self._metadata, self._timeline)
        try:
            return self._admit(message, trace)
        except ConchError as error:
            if trace is not None:
                trace.refused(error)
            raise

    def _admit(self, message: RequestMessage, trace: Trace | None) -> Admitted:
        endpoint, timeline = self._endpoint, self._timeline
        model = self._model = endpoint.inference.model(message.model_name, message.version())
        if model.config.decoupled:
            raise Unsupported(
                "ModelInfer RPC doesn't support models with decoupled transaction policy: "
                f"use ModelStreamInfer, or /v2/models/{message.model_name}/generate_stream over HTTP"
            )
        meter = endpoint.check_room(model, message, self._metadata, timeline)
        request, self._options = endpoint.decode(message, self._metadata, timeline)
        request.meter = meter
        if trace is None:
            return endpoint.inference.infer(model, request, self.respond)
        trace.read(request, model.version)
        return endpoint.inference.infer(model, request, trace.relay(self.respond))

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Send the last response; see `request.Respond`."""
        if not final:
            return
        if self._options.classification and isinstance(answer, InferResponse):
            assert self._model is not None  # nothing is admitted without
            self._endpoint.classify(answer, self._model, self._options, self._send, self.client)
        else:
            self._send(answer)

    def _send(self, answer: InferResponse | ConchError | None) -> None:
        self._reply(self._encoded(answer))

    def _encoded(self, answer: InferResponse | ConchError | None) -> Sequence[Buffer] | ConchError:
        if isinstance(answer, InferResponse):
            try:
                return self._endpoint.responses.encode(place_outputs(answer, self._options))
            except ConchError as error:
                return error
        assert self._model is not None  # nothing is admitted without
        return answer or ConchError(f"model '{self._model.config.name}' ended the request without a response")


def place_outputs(response: InferResponse, options: ResponseOptions) -> InferResponse:
    """Return the response to send: without the outputs that are written to shared memory.

    Raises ConchError if an output does not fit its region.
    """
    if options.parts:
        response = write_outputs(response, options.parts)
    return response


def _joined(outcome: Outcome, body: Buffer) -> InferMessage:
    """Return the message that a worker process has decoded."""
    head, *rest = outcome.parts
    message = service_pb2.ModelInferRequest()
    message.ParseFromString(head)
    parts = iter(rest)
    packed: list[Buffer | None] = [next(parts) if present else None for present in outcome.meta["packed"]]
    if outcome.meta["raw"]:
        return InferMessage(message, list(parts), packed)
    fields, view = split_fields(body), memoryview(body)
    return InferMessage(message, [view[begin:end] for begin, end in fields.contents] if fields else [], packed)


def _finish_classes(
    response: InferResponse,
    chosen: Sequence[Tensor],
    done: Callable[[InferResponse | ConchError], None],
    outcome: Outcome | ConchError,
) -> None:
    done(_with_classes(response, chosen, outcome))


def _with_classes(
    response: InferResponse, chosen: Sequence[Tensor], outcome: Outcome | ConchError
) -> InferResponse | ConchError:
    if isinstance(outcome, ConchError):
        return outcome
    shapes: Sequence[Sequence[int]] = outcome.meta["shapes"]
    classified = {
        tensor.name: Tensor(tensor.name, BYTES, shape, data)
        for tensor, shape, data in zip(chosen, shapes, outcome.parts, strict=True)
    }
    return _replace_outputs(response, classified)


def _replace_outputs(response: InferResponse, classified: Mapping[str, Tensor]) -> InferResponse:
    outputs = [classified.get(tensor.name, tensor) for tensor in response.outputs]
    return InferResponse(
        response.model_name, response.model_version, outputs, id=response.id, parameters=response.parameters
    )
