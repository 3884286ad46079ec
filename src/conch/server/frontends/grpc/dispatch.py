"""Dispatches HTTP/2 streams to gRPC methods by path."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from logging import getLogger
from time import monotonic_ns
from typing import TypeAlias

from conch.base.errors import Unsupported
from conch.domain.triton_messages import service_pb2
from conch.protocols.access.authorization import Access, Denial
from conch.protocols.access.restrictions import grpc_restrictions
from conch.protocols.connections.loop_budget import LoopBudget, ParseBudget
from conch.protocols.connections.traffic import Traffic
from conch.protocols.http.reply import Explain
from conch.protocols.http.router import is_local_client
from conch.protocols.http2.flow_control import ENDED_RECEIVER, Http2Stream, Receiver
from conch.protocols.http2.header_blocks import RequestHead
from conch.protocols.v2_proto import health
from conch.protocols.v2_proto.reflection import SERVICES, Reflection
from conch.server.frontends.endpoints import GRPC_CALLS
from conch.server.frontends.grpc.framing import AnswerForm
from conch.server.frontends.grpc.request import GrpcRequest, read_request
from conch.server.frontends.grpc.status import GrpcError, Status
from conch.server.frontends.grpc.stream_call import StreamCall
from conch.server.frontends.grpc.unary import ExplainedInferCall, InferCall, TaskCall
from conch.server.frontends.parts import Parts
from conch.server.frontends.v2_grpc.infer import WHY, GrpcInferEndpoint, Metadata
from conch.server.frontends.v2_grpc.infer_stream import ExplainedInferStream, InferStream, MessageStream
from conch.server.frontends.v2_grpc.service import HEALTH_SERVICE, INFERENCE_SERVICE, Method
from conch.server.frontends.v2_grpc.service_streams import HealthWatches, ReflectionStream
from conch.server.observability.tracing.observer import Observer

# Opens one call; the same opener serves all calls with equal heads.
Opener: TypeAlias = Callable[[Http2Stream], Receiver]

_log = getLogger(__name__)

_DENIED = {
    Denial.NO_KEY: Status.UNAUTHENTICATED,
    Denial.SCOPE: Status.PERMISSION_DENIED,
    Denial.REPEATED: Status.INVALID_ARGUMENT,
}
_INFER = f"/{INFERENCE_SERVICE}/ModelInfer"
_STREAM_INFER = f"/{INFERENCE_SERVICE}/ModelStreamInfer"
_WATCH = f"/{HEALTH_SERVICE}/Watch"
_REFLECTION = tuple(f"/{service}/ServerReflectionInfo" for service in SERVICES)
_DEBUG = "debug"  # category of the event log
_STREAMS = frozenset({_STREAM_INFER, _WATCH, *_REFLECTION})


class Dispatcher:
    """Opens calls by their path; an unknown path is UNIMPLEMENTED."""

    def __init__(self, parts: Parts, methods: Mapping[str, Method], header_limit: int, traffic: Traffic) -> None:
        """Create the calls' handlers. `header_limit` is the maximum of metadata in bytes. Raises ConfigError."""
        self._traffic = traffic
        self._methods = methods
        self._endpoint = GrpcInferEndpoint(parts)
        self._explain = parts.explain
        self._debug_remote = parts.options.debug_remote
        self._access = Access(grpc_restrictions(parts.options.grpc_restricted_protocol), parts.keys)
        self._budget = parts.budget
        self._compression = parts.options.grpc_infer_response_compression_level
        self._header_limit = header_limit
        self._loop_budget = LoopBudget()
        self._parse_budget = ParseBudget()
        self._streams: set[StreamCall] = set()
        self._watches = HealthWatches(_health_status, parts.inference.ready)
        self._reflection = Reflection([service_pb2.DESCRIPTOR, health.DESCRIPTOR])
        self._tasks: set[asyncio.Task[None]] = set()

    def interpret(self, head: RequestHead) -> Opener:
        """Return the opener for calls with this head. Everything that depends on the head alone is done here."""
        opener = self._interpret(head)
        access = self._access
        if not access:
            return opener
        version = access.version

        def checked(stream: Http2Stream) -> Receiver:
            # Equal heads are interpreted once, and keys may have changed since.
            return (opener if access.version == version else self._interpret(head))(stream)

        return checked

    def _interpret(self, head: RequestHead) -> Opener:
        request = read_request(head, self._header_limit, self._check)
        if request.refusal is not None:
            return _refuse(request, request.refusal, self._traffic, self._endpoint.observer)
        form = AnswerForm(self._compression, request.accepted, self._traffic)
        return self._explained_opener(head, request, form) or self._opener(request, form)

    def stop_streams(self) -> None:
        """End the open streams after the answers to the requests that they have."""
        for stream in tuple(self._streams):
            stream.inference.stop()

    def _check(self, path: str, metadata: Metadata) -> None:
        """Check that a call may be made. Raises GrpcError, ConchError: as in Triton, UNAVAILABLE if restricted."""
        category = GRPC_CALLS.get(path)
        if category is None:
            raise Unsupported(f"this server has no method '{path}'")
        denied = self._access.denied(category, partial(_values_of, metadata))
        if denied is None:
            return
        if denied.why is Denial.RESTRICTED:
            message = f"This protocol is restricted, expecting header '{denied.header}'"
            raise GrpcError(Status.UNAVAILABLE, message, "forbidden")
        raise GrpcError(_DENIED[denied.why], denied.message)

    def _opener(self, request: GrpcRequest, form: AnswerForm) -> Opener:
        endpoint, loop_budget, budget = self._endpoint, self._loop_budget, self._budget
        if request.path == _INFER:
            return lambda stream: InferCall(endpoint, loop_budget, request, form, stream, budget)
        if request.path in _STREAMS:
            return lambda stream: self._open_stream(request, form, stream)
        return lambda stream: self._open_task(request, form, stream)

    def _explained_opener(self, head: RequestHead, request: GrpcRequest, form: AnswerForm) -> Opener | None:
        """Return the opener for calls that ask where their time goes and may read the event log, None for others."""
        if self._explain is None or request.path not in (_INFER, _STREAM_INFER):
            return None
        if all(name != WHY for name, _ in head.fields):  # nearly always: nothing is built for it
            return None
        fields = {**dict(head.fields), b"host": head.authority}
        if self._access.denied(_DEBUG, partial(_values_of, request.metadata)) is not None:
            return None
        explain, plain = self._explain, self._opener(request, form)
        local = not self._debug_remote and not self._access.protects(_DEBUG)

        def opened(stream: Http2Stream) -> Receiver:
            if local and not is_local_client(fields, stream.peer):
                return plain(stream)
            if request.path == _STREAM_INFER:
                return self._open_stream(request, form, stream, explain)
            call = ExplainedInferCall(self._endpoint, self._loop_budget, request, form, stream, self._budget)
            call.explain = explain
            return call

        return opened

    def _open_task(self, request: GrpcRequest, form: AnswerForm, stream: Http2Stream) -> TaskCall:
        _log.debug("gRPC request: %s", request.path)
        return TaskCall(self._methods[request.path], self._tasks, request, form, stream, self._budget)

    def _open_stream(
        self, request: GrpcRequest, form: AnswerForm, stream: Http2Stream, explain: Explain | None = None
    ) -> StreamCall:
        call = StreamCall(
            partial(self._stream_of, request, explain),
            request,
            form,
            stream,
            self._streams.discard,
            self._budget,
            self._parse_budget,
        )
        self._streams.add(call)
        return call

    def _stream_of(self, request: GrpcRequest, explain: Explain | None, sink: StreamCall) -> MessageStream:
        if request.path == _STREAM_INFER:
            ends_at = 0 if request.timeout_s is None else monotonic_ns() + int(request.timeout_s * 1e9)
            if explain is None:
                return InferStream(self._endpoint, request.metadata, sink, ends_at, request.deadline)
            explained = ExplainedInferStream(self._endpoint, request.metadata, sink, ends_at, request.deadline)
            explained.explain = explain
            return explained
        if request.path == _WATCH:
            return self._watches.open(sink)
        return ReflectionStream(self._reflection.answer, sink)


def _values_of(metadata: Metadata, key: str) -> list[bytes]:
    values = [value for name, value in metadata if name == key]
    return [value if isinstance(value, bytes) else value.encode("latin-1") for value in values]


def _health_status(ready: bool) -> bytes:
    encoded: bytes = health.HealthCheckResponse(
        status=health.SERVING if ready else health.NOT_SERVING
    ).SerializeToString()
    return encoded


def _refuse(request: GrpcRequest, block: bytes, traffic: Traffic, observer: Observer) -> Opener:
    def opened(stream: Http2Stream) -> Receiver:
        traffic.count_refusal(request.refusal_reason)
        if request.refusal_text and request.path in (_INFER, _STREAM_INFER):
            observer.unread("GRPC", request.path, request.refusal_status, request.refusal_text)
        stream.answer_head(block)
        return ENDED_RECEIVER

    return opened
