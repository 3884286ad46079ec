"""`POST /v2/models/<model>/infer`: one request in, one response out, without a task or a future on the way."""

import re

from conch.core.inference import Inference
from conch.core.served import Served
from conch.errors import ConchError, ConfigError, InvalidRequest, Unavailable, Unsupported
from conch.frontends.body_budget import UNCHARGED_BYTES, BodyBudget
from conch.frontends.http_errors import JSON, STATUS, send_error
from conch.frontends.http_message import HttpRequest, content_type, header, no_memory
from conch.frontends.http_reply import HttpReply
from conch.frontends.http_trace import begin_trace
from conch.observability.observer import Observer
from conch.observability.request_trace import Trace
from conch.protocol import documents
from conch.protocol.classification import classify
from conch.protocol.compression import SUPPORTED, UnknownCoding, compress, decompress, preferred_coding
from conch.protocol.regions import NO_REGIONS, Regions
from conch.protocol.repeated_body import RepeatedBodies
from conch.protocol.v2_json import (
    RESERVED_PARAMETERS,
    RESERVED_PREFIX,
    OutputOptions,
    decode_raw_request,
    encode_response,
    read_header_length,
)
from conch.request import InferRequest, InferResponse, Respond, Timeline
from conch.tensor import Buffer, Tensor

_LENGTH_HEADER = b"inference-header-content-length"
_KNOWN_CODINGS = header(b"Accept-Encoding", SUPPORTED)
_BINARY = content_type(b"application/octet-stream")
# Triton puts no bound on binary tensors but that sizes are 32-bit integers.
_MAX_BINARY_BODY = 2**31 - 1


class InferEndpoint:
    """Decodes, asks the core, encodes."""

    def __init__(
        self,
        inference: Inference,
        *,
        max_input_bytes: int,
        header_forward_pattern: str,
        regions: Regions = NO_REGIONS,
        observer: Observer,
        budget: BodyBudget,
    ) -> None:
        """Assign. Headers whose names the pattern is found in become parameters of the request; "" forwards none.

        Raises ConfigError for a pattern that is no regular expression.
        """
        self._inference = inference
        self._observer = observer
        self._budget = budget
        self._max_input_bytes = max_input_bytes
        self._repeated = RepeatedBodies(regions)
        try:
            self._forwarded = re.compile(header_forward_pattern) if header_forward_pattern else None
        except re.error as error:
            raise ConfigError(f"--http-header-forward-pattern '{header_forward_pattern}': {error}") from None

    def body_limit(self, request: HttpRequest) -> int:
        """Return how large a body may be: JSON is bounded, since it takes many times its size to hold."""
        return _MAX_BINARY_BODY if _LENGTH_HEADER in request.headers else self._max_input_bytes

    def __call__(self, request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        """Answer one request, now or when the model has. Raises ConchError if it is refused."""
        timeline = Timeline()
        if self._observer.on:
            self._serve_noted(request, reply, name, version, timeline)
        else:
            self._serve(request, reply, name, version, timeline, None)

    def _serve_noted(
        self, request: HttpRequest, reply: HttpReply, name: str, version: int | None, timeline: Timeline
    ) -> None:
        trace = begin_trace(self._observer, request, name, timeline)
        try:
            self._serve(request, reply, name, version, timeline, trace)
        except ConchError as error:
            if trace is not None:
                trace.refused(error)
            raise

    def _serve(
        self,
        request: HttpRequest,
        reply: HttpReply,
        name: str,
        version: int | None,
        timeline: Timeline,
        trace: Trace | None,
    ) -> None:
        model = self._inference.model(name, version)
        if model.config.decoupled:
            raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        model.check_room(timeline)
        try:
            infer_request, options = self._decode(request, model, version, timeline)
        except UnknownCoding as error:
            reply.send(STATUS[error.code], JSON + _KNOWN_CODINGS, documents.error(error.message))
            if trace is not None:
                trace.refused(error)
            return
        if self._forwarded is not None:
            self._forward_headers(self._forwarded, request, infer_request)
        exchange = _Exchange(reply, model, options, request.headers.get(b"accept-encoding", b""))
        respond: Respond = exchange.respond
        if trace is not None:
            trace.read(infer_request, model.version)
            respond = trace.relay(respond)
        admitted = self._inference.infer(infer_request, respond)
        if reply.open:
            reply.on_disconnect = admitted.cancel

    def _decode(
        self, request: HttpRequest, model: Served, version: int | None, timeline: Timeline
    ) -> tuple[InferRequest, OutputOptions]:
        body, headers = request.body, request.headers
        coding = headers.get(b"content-encoding")
        if coding is not None:
            body = self._charged(decompress(body, coding, self._max_input_bytes))
        header_length = read_header_length(headers.get(_LENGTH_HEADER), len(body))
        if header_length == 0:
            return decode_raw_request(model.config, version, body, timeline)
        json_size = len(body) if header_length is None else header_length
        if json_size > self._max_input_bytes:
            raise InvalidRequest(
                f"request JSON of {json_size} bytes exceeds the maximum of {self._max_input_bytes} bytes "
                "set by --http-max-input-size"
            )
        return self._repeated.decode(model.config.name, version, body, header_length, timeline)

    def _charged(self, plain: Buffer) -> Buffer:
        """Charge what was decompressed until it is freed. Raises Unavailable."""
        if len(plain) <= UNCHARGED_BYTES:
            return plain
        kept = self._budget.keep(plain)
        if kept is None:
            raise Unavailable(no_memory().message, retry_after_s=1.0)
        return kept

    def _forward_headers(self, pattern: re.Pattern[str], request: HttpRequest, infer_request: InferRequest) -> None:
        for raw_name, value in request.fields:
            name = raw_name.decode("latin-1")
            if pattern.search(name) is None:
                continue
            if name in RESERVED_PARAMETERS or name.startswith(RESERVED_PREFIX):
                raise InvalidRequest(f"header '{name}' cannot be forwarded: a parameter of that name is reserved")
            infer_request.parameters[name] = value.decode("latin-1")


class _Exchange:
    """What is remembered of a request until its response comes."""

    __slots__ = ("_accept", "_model", "_options", "_reply")

    def __init__(self, reply: HttpReply, model: Served, options: OutputOptions, accept: bytes) -> None:
        self._reply = reply
        self._model = model
        self._options = options
        self._accept = accept

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:  # noqa: ARG002 - there is one
        """Send the response, or the error; the first of them counts."""
        if isinstance(answer, InferResponse):
            try:
                document, binary = encode_response(answer, self._options, self._classify)
            except ConchError as error:
                send_error(self._reply, error)
                return
            self._send(document, binary)
        elif answer is not None:
            send_error(self._reply, answer)
        elif self._reply.open:
            name = self._model.config.name
            send_error(self._reply, ConchError(f"model '{name}' ended the request without a response"))

    def _send(self, document: bytes, binary: list[Buffer]) -> None:
        headers = JSON
        if any(map(len, binary)):  # without any bytes there is nothing but JSON
            headers = _BINARY + header(b"Inference-Header-Content-Length", b"%d" % len(document))
        parts: list[Buffer] = [document, *binary]
        if self._accept:
            coding = preferred_coding(self._accept)
            if coding != b"identity":
                headers += header(b"Content-Encoding", coding)
                parts = [*compress(parts, coding)]
        self._reply.send(200, headers, *parts)

    def _classify(self, tensor: Tensor, count: int) -> Tensor:
        batched = self._model.config.max_batch_size > 0
        return classify(tensor, count, self._model.labels.get(tensor.name, ()), batched)
