"""`POST /v2/models/<model>/generate` and `…/generate_stream`: one response as JSON, or all of them as events."""

import asyncio
from collections import deque
from functools import partial

from conch.base.errors import Cancelled, ConchError, InvalidRequest
from conch.domain.request import InferRequest, InferResponse, Respond, Timeline
from conch.protocols.http.deadlines import DEADLINE, set_deadlines
from conch.protocols.http.errors import JSON, send_error, status_of
from conch.protocols.http.message import HttpRequest, content_type, header
from conch.protocols.http.reply import HttpReply
from conch.protocols.v2_json import documents, generate
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.server.frontends.exchange_log import log_http
from conch.server.frontends.offload.pool import Done, Outcome
from conch.server.frontends.parts import Parts
from conch.server.frontends.v2_http.in_flight import InFlight, check_room

_EVENTS = content_type(b"text/event-stream; charset=utf-8") + header(b"Cache-Control", b"no-cache")
# Unsent responses of one slow client; beyond this its stream ends.
MAX_UNSENT_BYTES = 64 * 2**20
# The status of every error that a model raises or answers with, whatever its code, as in Triton.
_MODEL_FAILED = 400
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)


class GenerateEndpoints:
    """Serves `generate` and `generate_stream` for models of every kind."""

    def __init__(self, parts: Parts) -> None:
        self._inference = parts.inference
        self._tenants = parts.tenants
        self._pool = parts.codecs
        self._observer = parts.observer
        self._recorder = parts.recorder

    def single(self, request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        """Answer with the only response of the model. Raises ConchError if the request is refused."""
        self._serve(request, reply, name, version, _SingleResponse)

    def stream(self, request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        """Answer with every response as it comes. Raises ConchError if the request is refused."""
        self._serve(request, reply, name, version, _EventStream)

    def _serve(
        self, request: HttpRequest, reply: HttpReply, name: str, version: int | None, encoder: "type[_OrderedEncoder]"
    ) -> None:
        timeline = Timeline()
        log_http(self._recorder, request, reply, timeline)
        trace = self._observer.begin_http(request, name, timeline) if self._observer.on else None
        try:
            if DEADLINE in request.headers:
                set_deadlines(timeline, request.headers[DEADLINE])
            model = self._inference.model(name, version)
            if request.headers.get(b"content-encoding", b"identity") != b"identity":
                raise InvalidRequest("Unsupported content-encoding, only 'identity' is supported.")
            meter = check_room(self._inference, model, timeline, request, self._tenants)
            call = InFlight(request, reply, model, version, timeline, trace, meter, self._pool, self._tenants)
            respond = encoder(call, generate.structured_tensors(model.config)).respond
            if len(request.body) > MAX_INLINE_BYTES:
                described = generate.describe_model(model.config)
                admit = partial(self._admit_decoded, call, respond)
                size = len(request.body)
                call.decode("generate_request", described, [request.body], admit, size)
            else:
                decoded = generate.decode_request(model.config, version, request.body, timeline)
                self._admit(call, decoded, respond)
        except ConchError as error:
            if trace is not None:
                trace.refused(error)
            raise

    def _admit_decoded(self, call: InFlight, respond: Respond, outcome: Outcome) -> None:
        """Admit a request that a worker process has decoded. Raises ConchError."""
        call.model = self._inference.model(call.model.config.name, call.version)  # which may have been replaced
        config = call.model.config
        decoded = generate.unpack_request(config, call.version, outcome.meta, outcome.parts, call.timeline)
        self._admit(call, decoded, respond)

    def _admit(self, call: InFlight, infer_request: InferRequest, respond: Respond) -> None:
        admitted = call.admit(self._inference, infer_request, respond)
        if not call.reply.open:
            admitted.cancel()


class _OrderedEncoder:
    """Encodes the responses of a call in order, large ones by a worker process."""

    def __init__(self, call: InFlight, structured: frozenset[str]) -> None:
        """`structured` are the names of tensors that are JSON values."""
        self._call = call
        self._reply = call.reply
        self._structured = structured
        self._waiting: deque[tuple[InferResponse | ConchError | None, bool]] = deque()
        self._waiting_bytes = 0
        self._writing = False

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Encode and send a response, or the error that ends them; see `request.Respond`."""
        if self._writing:
            self._waiting.append((answer, final))
            self._waiting_bytes += _size(answer)
            return
        document: bytes | ConchError | None = None
        if isinstance(answer, ConchError):
            document = answer
        elif answer is not None:
            if answer.degraded and not self._reply.begun:
                self._reply.note_degraded(answer.degraded)
            try:
                if _size(answer) > MAX_INLINE_BYTES:
                    args, parts = generate.describe_response(answer, self._structured)
                    call = self._call
                    call.pool.submit("generate_response", args, parts, self._done(final), client=call.client())
                    self._writing = True
                    return
                document = generate.encode_response(answer, self._structured)
            except ConchError as error:
                document = error
        self.send(document, final)

    def send(self, document: bytes | ConchError | None, final: bool) -> None:
        """Send a response as JSON, an error, or None where the end has no response."""
        raise NotImplementedError

    def _done(self, final: bool) -> Done:
        def done(outcome: Outcome | ConchError) -> None:
            self._writing = False
            self.send(outcome if isinstance(outcome, ConchError) else bytes(outcome.parts[0]), final)
            while self._waiting and not self._writing:
                answer, last = self._waiting.popleft()
                self._waiting_bytes -= _size(answer)
                self.respond(answer, last)

        return done


class _SingleResponse(_OrderedEncoder):
    """Sends the only response of a request as JSON."""

    def __init__(self, call: InFlight, structured: frozenset[str]) -> None:
        super().__init__(call, structured)
        self._responses = 0
        self._document: bytes | ConchError = b""

    def send(self, document: bytes | ConchError | None, final: bool) -> None:
        """Keep the response or error; at the end send it, if it is the only one."""
        if document is not None:
            self._responses += 1
            if self._responses == 1:
                self._document = document
        if not final:
            return
        first = self._document
        if self._responses != 1:
            send_error(self._reply, InvalidRequest(_NOT_ONE))
        elif not isinstance(first, ConchError):
            self._reply.send(200, JSON, first)
        elif first.by_server:
            send_error(self._reply, first)
        else:
            send_error(self._reply, InvalidRequest(first.message))


class _EventStream(_OrderedEncoder):
    """Sends responses as events as they come; they are queued while the client does not keep up."""

    def __init__(self, call: InFlight, structured: frozenset[str]) -> None:
        super().__init__(call, structured)
        self._unsent = bytearray()
        self._catching_up: asyncio.Task[None] | None = None

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        super().respond(answer, final)
        if self._catching_up is not None:
            self._check_unsent()

    def send(self, document: bytes | ConchError | None, final: bool) -> None:
        """Send a response or an error; the final one ends the reply."""
        if isinstance(document, Cancelled) and not self._reply.open:
            return
        status, event = 200, b""
        if isinstance(document, ConchError):
            # The first response decides the status, as in Triton.
            status = status_of(document) if document.by_server else _MODEL_FAILED
            event = _event(documents.error(document.message))
        elif document is not None:
            event = _event(document)
        if not self._reply.begun:
            self._reply.begin(status, _EVENTS)
        if final:
            self._reply.write(bytes(self._unsent) + event)
            self._reply.end()
        elif self._catching_up is not None:
            self._unsent += event
            self._check_unsent()
        else:
            self._reply.write(event)
            if not self._reply.writable:
                self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        await self._reply.drained()
        self._catching_up = None
        unsent, self._unsent = self._unsent, bytearray()
        self._reply.write(bytes(unsent))

    def _check_unsent(self) -> None:
        """End the stream of a slow client if more than `MAX_UNSENT_BYTES` wait, encoded or not."""
        waiting = len(self._unsent) + self._waiting_bytes
        if waiting <= MAX_UNSENT_BYTES:
            return
        self._unsent.clear()
        self._waiting.clear()
        self._waiting_bytes = 0
        cancel = self._reply.on_disconnect
        text = f"the client reads too slowly: {waiting} bytes were waiting for it"
        self._reply.write(_event(documents.error(text)))
        self._reply.end()
        if cancel is not None:
            cancel()


def _size(answer: InferResponse | ConchError | None) -> int:
    return sum(tensor.nbytes for tensor in answer.outputs) if isinstance(answer, InferResponse) else 0


def _event(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"
