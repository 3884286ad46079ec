"""`POST /v2/models/<model>/generate` and `…/generate_stream`: one response as JSON, or all of them as events."""

import asyncio

from conch.core.inference import Inference
from conch.core.served import Served
from conch.errors import Cancelled, ConchError, InvalidRequest, Unavailable
from conch.frontends.http_errors import JSON, send_error
from conch.frontends.http_message import HttpRequest, content_type, header
from conch.frontends.http_reply import HttpReply
from conch.frontends.http_trace import begin_trace
from conch.observability.observer import Observer
from conch.protocol import documents, generate
from conch.request import InferRequest, InferResponse, Respond, Timeline

_EVENTS = content_type(b"text/event-stream; charset=utf-8") + header(b"Cache-Control", b"no-cache")
# So much may wait for a client that does not read what it has asked for.
_UNSENT_LIMIT = 64 * 2**20
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various "
    "number of responses"
)


class GenerateEndpoints:
    """Decodes, asks the core, encodes; for models of every kind."""

    def __init__(self, inference: Inference, observer: Observer) -> None:
        self._inference = inference
        self._observer = observer

    def one(self, request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        """Answer with the only response of the model. Raises ConchError if the request is refused."""
        self._serve(request, reply, name, version, _One(reply).respond)

    def stream(self, request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        """Answer with every response as it comes. Raises ConchError if the request is refused."""
        self._serve(request, reply, name, version, _Stream(reply).respond)

    def _serve(self, request: HttpRequest, reply: HttpReply, name: str, version: int | None, respond: Respond) -> None:
        timeline = Timeline()
        trace = begin_trace(self._observer, request, name, timeline) if self._observer.on else None
        try:
            model = self._inference.model(name, version)
            infer_request = self._decode(request, model, version, timeline)
            if trace is not None:
                trace.read(infer_request, model.version)
                respond = trace.relay(respond)
            admitted = self._inference.infer(infer_request, respond)
        except ConchError as error:
            if trace is not None:
                trace.refused(error)
            raise
        if reply.open:
            reply.on_disconnect = admitted.cancel
        else:
            admitted.cancel()

    def _decode(self, request: HttpRequest, model: Served, version: int | None, timeline: Timeline) -> InferRequest:
        if request.headers.get(b"content-encoding", b"identity") != b"identity":
            raise InvalidRequest("Unsupported content-encoding, only 'identity' is supported.")
        model.check_room(timeline)
        return generate.decode_request(model.config, version, request.body, timeline)


class _One:
    """What is remembered of a request that is to have one response."""

    __slots__ = ("_document", "_error", "_reply", "_responses")

    def __init__(self, reply: HttpReply) -> None:
        self._reply = reply
        self._responses = 0
        self._document = b""
        self._error: ConchError | None = None  # in place of the first response

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Keep the response or error; at the end send it, if it is the only one."""
        if answer is not None:
            self._responses += 1
            if self._responses == 1:
                self._keep(answer)
        if not final:
            return
        if self._responses != 1:
            send_error(self._reply, InvalidRequest(_NOT_ONE))
        elif self._error is not None:
            send_error(self._reply, self._error)
        else:
            self._reply.send(200, JSON, self._document)

    def _keep(self, answer: InferResponse | ConchError) -> None:
        try:
            if isinstance(answer, ConchError):
                raise answer
            self._document = generate.encode_response(answer)
        except (Unavailable, Cancelled) as error:
            self._error = error
        except ConchError as error:
            # Whatever a model fails with is 400 here, as in Triton.
            self._error = InvalidRequest(error.message)


class _Stream:
    """What is remembered of a request whose responses are sent as they come. A slow client gets them when it can."""

    __slots__ = ("_catching_up", "_held", "_reply")

    def __init__(self, reply: HttpReply) -> None:
        self._reply = reply
        self._held = bytearray()
        self._catching_up: asyncio.Task[None] | None = None

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Send a response or an error; the final one ends the reply."""
        if isinstance(answer, Cancelled) and not self._reply.open:
            return
        status, event = 200, b""
        if isinstance(answer, ConchError):
            # Triton's: the first response decides the status, and whatever is wrong is 400.
            status, event = 400, _event(documents.error(answer.message))
        elif answer is not None:
            try:
                event = _event(generate.encode_response(answer))
            except ConchError as error:
                status, event = 400, _event(documents.error(error.message))
        if not self._reply.begun:
            self._reply.begin(status, _EVENTS)
        if final:
            self._reply.write(bytes(self._held) + event)
            self._reply.end()
        elif self._catching_up is not None:
            self._hold(event)
        else:
            self._reply.write(event)
            if not self._reply.writable:
                self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        await self._reply.drained()
        self._catching_up = None
        held, self._held = self._held, bytearray()
        self._reply.write(bytes(held))

    def _hold(self, event: bytes) -> None:
        """Keep what the client does not take yet; if that is too much, it has had its chance."""
        self._held += event
        if len(self._held) <= _UNSENT_LIMIT:
            return
        text = f"the client reads too slowly: {len(self._held)} bytes were waiting for it"
        self._held.clear()
        cancel = self._reply.on_disconnect
        self._reply.write(_event(documents.error(text)))
        self._reply.end()
        if cancel is not None:
            cancel()


def _event(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"
