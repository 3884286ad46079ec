"""ModelStreamInfer without the wire: many requests in, their responses out, each at its time.

A transport calls `receive` for each message, `end` when the client has sent its last and `cancel` when it has gone; it
gets what is to be sent by its `Sink`. How the responses are ordered:

    ordinary models     as their requests came: a response waits until those before it are out
    decoupled models    as they come

Memory is bounded twice. `full` holds back the reading of further requests, and with it the client by flow control,
while what it has asked for and not taken could come to `_BUDGET` bytes by the size of the largest message so far. A
decoupled model cannot be held back that way: when more than `_UNSENT_LIMIT` bytes wait for a client that does not
read, its stream is ended and its requests are cancelled. Other streams notice nothing of either.
"""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from conch.core.served_model import ServedModel
from conch.errors import ConchError, Unavailable
from conch.frontends.grpc.framing import Compressed
from conch.frontends.v2_grpc.infer import GrpcInferEndpoint, Metadata, as_wanted
from conch.observability.tracing.request_trace import Trace
from conch.protocol.v2_json.large import MAX_INLINE_BYTES
from conch.protocol.v2_proto.inference import ResponseOptions, encode_stream_error
from conch.protocol.v2_proto.request_cache import RequestMessage
from conch.request import Admitted, InferRequest, InferResponse, Respond, Timeline
from conch.tensor import Buffer

_MOST_UNTAKEN = 256
_BUDGET = 64 * 2**20
_UNSENT_LIMIT = 256 * 2**20
# What a waiting message costs beside its bytes.
_MESSAGE_OVERHEAD = 128


class ResponseSink(Protocol):
    """How messages go out."""

    @property
    def flushed(self) -> bool:
        """Whether all that was sent has gone; else `InferStream.drained` is called when it has."""

    def send(self, message: Sequence[Buffer]) -> None:
        """Send a message."""

    def finish(self, error: ConchError | None) -> None:
        """End the call, well or with an error. Called once at most, and nothing after it."""

    def resume(self) -> None:
        """Hear that there is room for requests again. Called often, and for nothing if none waits."""


class InferStream:
    """One ModelStreamInfer call. All methods belong to the event loop's thread."""

    def __init__(self, endpoint: GrpcInferEndpoint, metadata: Metadata, sink: ResponseSink) -> None:
        self.endpoint = endpoint
        self._metadata = tuple(metadata)
        self._sink = sink
        # Whether errors of the core and of models end the call instead of travelling in messages.
        self.status_errors = ("triton_grpc_error", "true") in self._metadata
        self._ordered: deque[_Exchange] = deque()  # for ordinary models, until their responses are released
        self._decoupled: set[_Exchange] = set()  # for decoupled models, until their final response
        self._unsent: deque[Sequence[Buffer]] = deque()
        self._unsent_bytes = 0
        self._largest = _BUDGET // _MOST_UNTAKEN
        self._ended = False  # no request will follow
        self.closed = False  # nothing more will be put in the queue
        self._finished = False  # nothing more will be sent
        self._error: ConchError | None = None  # how the call ends, if not well
        self._reading: _Exchange | None = None  # whose request a worker reads; the next has to wait

    # ---- for the transport

    @property
    def full(self) -> bool:
        """Whether the next request has to wait. One that is received all the same is served."""
        untaken = len(self._ordered) + len(self._decoupled) + len(self._unsent)
        return self._reading is not None or (untaken * self._largest >= _BUDGET and not self._ended)

    def receive(self, data: Buffer | Compressed) -> None:
        """Serve one request. What is wrong with it becomes a message of its own; the stream goes on."""
        if self._ended:
            return
        self.saw(len(data))
        exchange = _Exchange(self)
        timeline = Timeline()
        try:
            if len(data) > MAX_INLINE_BYTES or isinstance(data, Compressed):
                if self.endpoint.read_large(data, lambda found: self._read(exchange, found, timeline)) is not None:
                    self._reading = exchange
                    return
                assert not isinstance(data, Compressed)
            message = self.endpoint.read(data)
        except ConchError as error:
            self._refuse(exchange, error)
        else:
            self._serve(exchange, message, timeline)

    def _read(self, exchange: "_Exchange", found: RequestMessage | ConchError, timeline: Timeline) -> None:
        """Go on with a request that a worker has read."""
        self._reading = None
        if self.closed:
            return
        if isinstance(found, ConchError):
            self._refuse(exchange, found)
        else:
            self._serve(exchange, found, timeline)
        self._advance()

    def _refuse(self, exchange: "_Exchange", error: ConchError) -> None:
        self._enter(exchange)
        if exchange.trace is not None:
            exchange.trace.refused(error)
        exchange.refuse(error)

    def _serve(self, exchange: "_Exchange", message: RequestMessage, timeline: Timeline) -> None:
        try:
            request = self._decode(message, exchange, timeline)
        except ConchError as error:
            self._refuse(exchange, error)
            return
        self._enter(exchange)
        try:
            respond: Respond = exchange.respond
            if exchange.trace is not None:
                respond = exchange.trace.relay(respond)
            exchange.admitted = self.endpoint.inference.infer(request, respond)
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
        """The client sends no more requests; those that are here are still answered."""
        self._ended = True
        self._advance()

    def stop(self) -> None:
        """The server stops: take no more requests, answer those that are here, then say why."""
        if not self._ended:
            self._error = Unavailable("the server is stopping")
            self.end()

    def cancel(self) -> None:
        """The client has gone: cancel what it asked for and forget what it would have got."""
        self._finished = True
        self._unsent.clear()
        self._close()

    def drained(self) -> None:
        """What was sent has gone: send more, and take more."""
        self._advance()

    # ---- for the exchanges

    def saw(self, size: int) -> None:
        """Learn how large messages are."""
        self._largest = max(self._largest, size)

    def send(self, message: Sequence[Buffer]) -> None:
        """Send a message, or queue it behind those that wait."""
        if not self._unsent and self._sink.flushed:
            self._sink.send(message)
            return
        self._unsent.append(message)
        self._unsent_bytes += sum(map(len, message)) + _MESSAGE_OVERHEAD
        if self._unsent_bytes > _UNSENT_LIMIT:
            waiting = len(self._unsent)
            self._unsent.clear()
            self.fail(Unavailable(f"the client reads too slowly: {waiting} responses were waiting for it"))

    def encode(self, response: InferResponse, final: bool) -> Sequence[Buffer]:
        """Serialize a response. Raises ConchError if a parameter does not fit its message."""
        return self.endpoint.responses.encode_streamed(response, final)

    def settle(self, exchange: "_Exchange") -> None:
        """Note that a request is answered; release what was waiting for that."""
        self._decoupled.discard(exchange)
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
        """Send what may be sent; end the call if that was all; take more if there is room."""
        unsent = self._unsent
        while unsent and self._sink.flushed:
            message = unsent.popleft()
            self._unsent_bytes -= sum(map(len, message)) + _MESSAGE_OVERHEAD
            self._sink.send(message)
        if not self._ended:
            self._sink.resume()
        elif not (unsent or self._ordered or self._decoupled or self._finished or self._reading is not None):
            self.closed = self._finished = True
            self._sink.finish(self._error)

    def _decode(self, message: RequestMessage, exchange: "_Exchange", timeline: Timeline) -> InferRequest:
        exchange.id = message.id
        if self.endpoint.observer.on:
            exchange.trace = self.endpoint.begin(message.model_name, self._metadata, timeline)
        exchange.model = self.endpoint.inference.model(message.model_name, message.version())
        exchange.decoupled = exchange.model.config.decoupled
        exchange.model.check_room(timeline)
        request, exchange.options = self.endpoint.decode(message, self._metadata, timeline)
        if exchange.trace is not None:
            exchange.trace.read(request, exchange.model.version)
        return request

    def _enter(self, exchange: "_Exchange") -> None:
        if exchange.decoupled:
            self._decoupled.add(exchange)
        else:
            self._ordered.append(exchange)

    def _close(self) -> None:
        self._ended = self.closed = True
        unanswered = [*self._ordered, *self._decoupled]
        self._ordered.clear()
        self._decoupled.clear()
        for exchange in unanswered:
            exchange.cancel()
        self._advance()


class _Exchange:
    """One request of a stream and what has come of it."""

    __slots__ = (
        "_classifying",
        "_held",
        "_stream",
        "admitted",
        "decoupled",
        "done",
        "id",
        "messages",
        "model",
        "options",
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
        self._classifying = False
        self._held: list[tuple[InferResponse | ConchError | None, bool]] = []  # what has come meanwhile
        self.messages: list[Sequence[Buffer]] = []  # an ordinary model's, until it is their turn
        self.done = False

    def cancel(self) -> None:
        """Tell the core that nobody waits any more."""
        if self.admitted is not None and not self.done:
            self.admitted.cancel()

    def refuse(self, error: ConchError) -> None:
        """Answer a request that was not admitted."""
        self._deliver(encode_stream_error(error.message, self.id, final=None), final=True)

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Take what the core says; see `request.Respond`."""
        if self._classifying:
            self._held.append((answer, final))
        elif self.options.classification and isinstance(answer, InferResponse) and not self._stream.closed:
            assert self.model is not None  # nothing is admitted without
            self._classifying = True
            self._stream.endpoint.classify(
                answer, self.model, self.options, lambda found: self._classified(found, final)
            )
        else:
            self._respond(answer, final)

    def _classified(self, answer: InferResponse | ConchError, final: bool) -> None:
        self._classifying = False
        self._respond(answer, final)
        held, self._held = self._held, []
        for one in held:
            self.respond(*one)

    def _respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        if self._stream.closed:
            self.done = self.done or final
        elif isinstance(answer, ConchError) and self._stream.status_errors:
            self.done = final
            self._stream.fail(answer)
        else:
            self._deliver(self._message(answer, final), final)

    def _deliver(self, message: Sequence[Buffer] | None, final: bool) -> None:
        if message is not None:
            self._stream.saw(sum(map(len, message)))
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
                return self._stream.encode(as_wanted(answer, self.options), final)
        except ConchError as error:
            answer = error
        text = answer.message if answer else f"model '{model.config.name}' ended the request without a response"
        return encode_stream_error(text, self.id, final, model.config.name)
