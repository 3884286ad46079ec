# Compiled by mypyc in wheels.
"""ModelStreamInfer without the wire: many requests in, their responses out, in order or as they come.

A transport calls `receive` for each message, `end` when the client has sent its last and `cancel` when it has
disconnected; responses go to its `ResponseSink`. How the responses are ordered:

    ordinary models     as their requests came: a response waits until those before it are out
    decoupled models    as they come

Memory is bounded twice. `full` holds back the reading of further requests, and with it the client by flow control,
while its unread responses could reach `_MAX_UNREAD_BYTES`, estimated by the largest message so far. A decoupled model
cannot be throttled that way: when more than `MAX_UNSENT_BYTES` wait for a client that does not read, its stream is
ended and its requests are cancelled. Neither affects other streams.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import partial
from math import inf
from time import monotonic_ns
from typing import Final, Protocol

from conch.base.errors import ConchError, Unavailable
from conch.domain.degradations import HEADER
from conch.domain.events.rows import ExchangeRow
from conch.domain.request import Admitted, InferRequest, InferResponse, Respond, Timeline
from conch.domain.tensor import Buffer
from conch.protocols.http.deadlines import set_deadlines
from conch.protocols.http.reply import Explain
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.protocols.v2_proto.inference import ResponseOptions, encode_stream_error
from conch.protocols.v2_proto.request_cache import RequestMessage
from conch.server.core.served_model import ServedModel
from conch.server.frontends.exchange_log import log_grpc
from conch.server.frontends.grpc.framing import Compressed
from conch.server.frontends.v2_grpc.infer import WHY, GrpcInferEndpoint, Metadata, place_outputs
from conch.server.observability.tracing.request_trace import Trace

_MAX_UNREAD_MESSAGES: Final = 256
_MAX_UNREAD_BYTES: Final = 64 * 2**20
MAX_UNSENT_BYTES: Final = 256 * 2**20
# The cost of a queued message beside its bytes.
_MESSAGE_OVERHEAD: Final = 128
# How long the client of an answered stream has to read the answer and to end the call, when the server stops.
_LINGER_S: Final = 3.0
_DEGRADED: Final = HEADER.lower().encode()


class ResponseSink(Protocol):
    """How messages go out."""

    @property
    def peer(self) -> str:
        """The address of the client, "" for a Unix socket."""

    @property
    def flushed(self) -> bool:
        """Whether everything sent has left; otherwise `InferStream.drained` is called when it has."""

    def send(self, message: Sequence[Buffer]) -> None:
        """Send a message."""

    def add_trailer(self, name: bytes, value: str) -> None:
        """Send metadata at the end of the call."""

    def finish(self, error: ConchError | None) -> None:
        """End the call, with an error or OK. Called at most once, as the last call."""

    def resume(self) -> None:
        """Read requests again: there is room for them. A no-op if none waits."""


class MessageStream(ABC):
    """A call with any number of messages in both directions, as its transport sees it."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether the next message has to wait."""

    @abstractmethod
    def receive(self, data: Buffer | Compressed) -> None:
        """Take one message of the client."""

    @abstractmethod
    def end(self) -> None:
        """Record that the client sends no more messages."""

    @abstractmethod
    def stop(self) -> None:
        """End soon: the server stops."""

    @abstractmethod
    def cancel(self) -> None:
        """Drop everything: the client has disconnected."""

    @abstractmethod
    def drained(self) -> None:
        """Send more: everything sent so far has left."""


class InferStream(MessageStream):
    """One ModelStreamInfer call. All methods belong to the event loop's thread."""

    def __init__(
        self,
        endpoint: GrpcInferEndpoint,
        metadata: Metadata,
        sink: ResponseSink,
        ends_at: int = 0,
        deadline: bytes = b"",
    ) -> None:
        """Create a stream. `ends_at` is when the call ends (monotonic ns); `deadline` is a header of each request."""
        self._ends_at = ends_at
        self._deadline = deadline
        self.endpoint = endpoint
        self._metadata = tuple(metadata)
        self._sink = sink
        # Whether errors of the core and of models end the call instead of travelling in messages.
        self.status_errors = ("triton_grpc_error", "true") in self._metadata
        self._ordered: deque[_Exchange] = deque()  # for ordinary models, until their responses are released
        self._decoupled: set[_Exchange] = set()  # for decoupled models, until their final response
        self._unsent: deque[Sequence[Buffer]] = deque()
        self._unsent_bytes = 0
        self._largest_bytes = _MAX_UNREAD_BYTES // _MAX_UNREAD_MESSAGES
        self._loop = asyncio.get_running_loop()
        self._ended = False  # no request will follow
        self.closed = False  # no further response is queued
        self._finished = False  # nothing more will be sent
        self._error: ConchError | None = None  # the error that ends the call, if any
        self._answered_at = -inf  # when the last request was answered, by the loop's clock
        self._lingers = False  # whether the client has time to end the call
        self._lingering: asyncio.TimerHandle | None = None  # until that is over
        self._reading: _Exchange | None = None  # whose request a worker process decodes; the next has to wait

    # Called by the transport.

    @property
    def full(self) -> bool:
        """Whether the next request has to wait. One that is received all the same is served."""
        unread = len(self._ordered) + len(self._decoupled) + len(self._unsent)
        return self._reading is not None or (unread * self._largest_bytes >= _MAX_UNREAD_BYTES and not self._ended)

    def receive(self, data: Buffer | Compressed) -> None:
        """Serve one request. An invalid one is answered by an error message; the stream stays open."""
        if self._ended:
            return
        self.note_size(len(data))
        exchange = _Exchange(self)
        timeline = Timeline()
        timeline.deadline = self._ends_at
        exchange.row = log_grpc(self.endpoint.recorder, self._metadata, len(data), 0, timeline)
        try:
            if self._deadline:
                set_deadlines(timeline, self._deadline)
            if len(data) > MAX_INLINE_BYTES or isinstance(data, Compressed):
                read = partial(self._read, exchange, timeline)
                if self.endpoint.read_large(data, read, self.client) is not None:
                    self._reading = exchange
                    return
                assert not isinstance(data, Compressed)
            message = self.endpoint.read(data)
        except ConchError as error:
            self._refuse(exchange, error)
        else:
            self._serve(exchange, message, timeline)

    def client(self) -> str:
        """Return the client in whose turn worker processes work for this call."""
        return self.endpoint.client(self._metadata, self._sink.peer)

    def _read(self, exchange: "_Exchange", timeline: Timeline, decoded: RequestMessage | ConchError) -> None:
        """Continue with a request that a worker process has decoded."""
        self._reading = None
        if self.closed:
            return
        if isinstance(decoded, ConchError):
            self._refuse(exchange, decoded)
        else:
            self._serve(exchange, decoded, timeline)
        self._advance()

    def _refuse(self, exchange: "_Exchange", error: ConchError) -> None:
        self._register(exchange)
        if exchange.trace is not None:
            exchange.trace.refused(error)
        exchange.refuse(error)

    def _serve(self, exchange: "_Exchange", message: RequestMessage, timeline: Timeline) -> None:
        try:
            request = self._decode(message, exchange, timeline)
        except ConchError as error:
            self._refuse(exchange, error)
            return
        self._register(exchange)
        try:
            respond: Respond = exchange.respond
            if exchange.trace is not None:
                respond = exchange.trace.relay(respond)
            assert exchange.model is not None  # which `_decode` has found
            exchange.admitted = self.endpoint.inference.infer(exchange.model, request, respond)
        except ConchError as error:
            if exchange.trace is not None:
                exchange.trace.refused(error)
            if self.status_errors:
                self.fail(error)
            else:
                exchange.refuse(error)
        if self.closed:  # in the midst of infer
            exchange.cancel()

    def end(self) -> None:
        """Record that the client sends no more requests; the ones in flight are still answered."""
        self._ended = True
        self._stop_lingering()
        self._advance()

    def stop(self) -> None:
        """Stop: take no more requests, answer the ones in flight, then end with UNAVAILABLE.

        The client has `_LINGER_S` to read the last answer and to end the call: proxies reset a call that the server
        ends first, and gRPC's clients then discard what they have not read.
        """
        if not self._ended:
            self._error = Unavailable("the server is stopping")
            self._ended = self._lingers = True
            self._advance()

    def cancel(self) -> None:
        """Cancel all requests and drop unsent responses: the client has disconnected."""
        self._finished = True
        self._unsent.clear()
        self._close()

    def drained(self) -> None:
        """Send and read more: everything sent so far has left."""
        self._advance()

    # Called by the exchanges.

    def note_size(self, size: int) -> None:
        """Record the size of a message, for `full`."""
        self._largest_bytes = max(self._largest_bytes, size)

    def send(self, message: Sequence[Buffer]) -> None:
        """Send a message, or queue it behind those that wait."""
        if not self._unsent and self._sink.flushed:
            self._sink.send(message)
            return
        self._unsent.append(message)
        self._unsent_bytes += sum(map(len, message)) + _MESSAGE_OVERHEAD
        if self._unsent_bytes > MAX_UNSENT_BYTES:
            waiting = len(self._unsent)
            self._unsent.clear()
            self.fail(Unavailable(f"the client reads too slowly: {waiting} responses were waiting for it"))

    def note_degraded(self, reason: str) -> None:
        """Send the reason of a degraded response at the end of the call."""
        self._sink.add_trailer(_DEGRADED, reason)

    def encode(self, response: InferResponse, final: bool) -> Sequence[Buffer]:
        """Serialize a response. Raises ConchError if a parameter does not fit its message."""
        return self.endpoint.responses.encode_streamed(response, final)

    def settle(self, exchange: "_Exchange") -> None:
        """Record that a request is answered; send the responses that waited for it."""
        row = exchange.row
        if row is not None:
            row.written = monotonic_ns()
            row.drained = 0 if self._unsent else row.written
            self.endpoint.recorder.exchanges.add(row)
            exchange.row = None
        self._decoupled.discard(exchange)
        self._answered_at = self._loop.time()
        ordered = self._ordered
        while ordered and ordered[0].done and not self.closed:
            for message in ordered.popleft().messages:
                self.send(message)
        self._advance()

    def fail(self, error: ConchError) -> None:
        """End the call with an error, after the messages that are queued already."""
        self._error = error
        self._close()

    def _advance(self) -> None:
        """Send what may be sent, then end the call if it is complete, else read more if there is room."""
        unsent = self._unsent
        while unsent and self._sink.flushed:
            message = unsent.popleft()
            self._unsent_bytes -= sum(map(len, message)) + _MESSAGE_OVERHEAD
            self._sink.send(message)
        if not self._ended:
            self._sink.resume()
        elif not (unsent or self._ordered or self._decoupled or self._finished or self._reading is not None):
            if self._lingers and self._loop.time() < self._answered_at + _LINGER_S:
                if self._lingering is None:
                    self._lingering = self._loop.call_at(self._answered_at + _LINGER_S, self.end)
            else:
                self.closed = self._finished = True
                self._finish()

    def _finish(self) -> None:
        self._sink.finish(self._error)

    def _decode(self, message: RequestMessage, exchange: "_Exchange", timeline: Timeline) -> InferRequest:
        exchange.id = message.id
        if self.endpoint.observer.on:
            exchange.trace = self.endpoint.begin_trace(message.model_name, self._metadata, timeline)
        exchange.model = self.endpoint.inference.model(message.model_name, message.version())
        exchange.decoupled = exchange.model.config.decoupled
        meter = self.endpoint.check_room(exchange.model, message, self._metadata, timeline)
        request, exchange.options = self.endpoint.decode(message, self._metadata, timeline)
        request.meter = meter
        if exchange.trace is not None:
            exchange.trace.read(request, exchange.model.version)
        return request

    def _register(self, exchange: "_Exchange") -> None:
        if exchange.decoupled:
            self._decoupled.add(exchange)
        else:
            self._ordered.append(exchange)

    def _close(self) -> None:
        self._ended = self.closed = True
        self._stop_lingering()
        unanswered = [*self._ordered, *self._decoupled]
        self._ordered.clear()
        self._decoupled.clear()
        for exchange in unanswered:
            exchange.cancel()
        self._advance()

    def _stop_lingering(self) -> None:
        self._lingers = False
        if self._lingering is not None:
            self._lingering.cancel()


class ExplainedInferStream(InferStream):
    """A stream whose end says where the time of its slowest request went."""

    explain: Explain  # set by the dispatcher, at once
    _slowest: tuple[int, int, int] = (0, 0, 0)  # ns, its number, when it was received

    def settle(self, exchange: "_Exchange") -> None:
        row = exchange.row
        if row is not None:
            self._slowest = max(self._slowest, (monotonic_ns() - row.received, row.number, row.received))
        super().settle(exchange)

    def _finish(self) -> None:
        self.explain(self._slowest[1], self._slowest[2], self._finish_explained)

    def _finish_explained(self, text: str) -> None:
        if text:
            self._sink.add_trailer(WHY, text)
        super()._finish()


class _Exchange:
    """One request of a stream and its responses."""

    __slots__ = (
        "_classifying",
        "_queued",
        "_stream",
        "admitted",
        "decoupled",
        "done",
        "id",
        "messages",
        "model",
        "options",
        "row",
        "trace",
    )

    def __init__(self, stream: InferStream) -> None:
        self._stream = stream
        self.id = ""
        self.model: ServedModel | None = None
        self.options = ResponseOptions()
        self.decoupled = False
        self.admitted: Admitted | None = None
        self.trace: Trace | None = None
        self.row: ExchangeRow | None = None  # of the event log
        self._classifying = False
        self._queued: list[tuple[InferResponse | ConchError | None, bool]] = []  # responses that came meanwhile
        self.messages: list[Sequence[Buffer]] = []  # of an ordinary model, until it is their turn
        self.done = False

    def cancel(self) -> None:
        """Cancel the request in the core, unless it is done."""
        if self.admitted is not None and not self.done:
            self.admitted.cancel()

    def refuse(self, error: ConchError) -> None:
        """Answer a request that was not admitted."""
        self._deliver(encode_stream_error(error.message, self.id, final=None), final=True)

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Send a response, or queue it; see `request.Respond`."""
        if self._classifying:
            self._queued.append((answer, final))
        elif self.options.classification and isinstance(answer, InferResponse) and not self._stream.closed:
            assert self.model is not None  # nothing is admitted without
            self._classifying = True
            done = partial(self._classified, final)
            self._stream.endpoint.classify(answer, self.model, self.options, done, self._stream.client)
        else:
            self._respond(answer, final)

    def _classified(self, final: bool, answer: InferResponse | ConchError) -> None:
        self._classifying = False
        self._respond(answer, final)
        queued, self._queued = self._queued, []
        for response in queued:
            self.respond(*response)

    def _respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        if self._stream.closed:
            self.done = self.done or final
        elif isinstance(answer, ConchError) and self._is_refusal(answer):
            self.refuse(answer)
        elif isinstance(answer, ConchError) and self._stream.status_errors:
            self.done = final
            self._stream.fail(answer)
        else:
            self._deliver(self._message(answer, final), final)

    def _is_refusal(self, error: ConchError) -> bool:
        """Whether the core has refused the request, so that a message says it."""
        return error.refused == "look-up" or (error.refused != "" and not self._stream.status_errors)

    def _deliver(self, message: Sequence[Buffer] | None, final: bool) -> None:
        if message is not None:
            size = sum(map(len, message))
            self._stream.note_size(size)
            if self.row is not None:
                self.row.bytes_out += size
                self.row.encoded = self.row.encoded or monotonic_ns()
            if self.decoupled:
                self._stream.send(message)
            else:
                self.messages.append(message)
        if final:
            self.done = True
            self._stream.settle(self)

    def _message(self, answer: InferResponse | ConchError | None, final: bool) -> Sequence[Buffer] | None:
        model = self.model
        assert model is not None  # nothing is admitted without
        if answer is None and self.decoupled:
            if not self.options.empty_final_response:
                return None
            answer = InferResponse(model.config.name, model.version, [], id=self.id)
        try:
            if isinstance(answer, InferResponse):
                if answer.degraded:
                    self._stream.note_degraded(answer.degraded)
                return self._stream.encode(place_outputs(answer, self.options), final)
        except ConchError as error:
            answer = error
        text = answer.message if answer else f"model '{model.config.name}' ended the request without a response"
        return encode_stream_error(text, self.id, final, model.config.name)
