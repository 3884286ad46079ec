# Compiled by mypyc in wheels.
"""`POST /v2/models/<model>/infer`: one request in, one response out, without a task or a future on the way."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

from conch.base.errors import ConchError, Unavailable, Unsupported
from conch.domain.request import InferRequest, InferResponse, Timeline
from conch.domain.tensor import Buffer, Tensor
from conch.protocols.classification import classify
from conch.protocols.compression import MAX_RATIO, compress, decompress_small, preferred_coding
from conch.protocols.connections.body_budget import UNCHARGED_BYTES, BodyBudget
from conch.protocols.http.deadlines import DEADLINE, set_deadlines
from conch.protocols.http.errors import JSON, send_error
from conch.protocols.http.message import HttpRequest, content_type, header, no_memory
from conch.protocols.http.reply import HttpReply
from conch.protocols.regions import Regions
from conch.protocols.v2_json.inference import (
    RESERVED_PARAMETERS,
    RESERVED_PREFIX,
    OutputOptions,
    decode_parts,
    decode_raw_request,
    encode_response,
    place,
    read_header_length,
)
from conch.protocols.v2_json.large import MAX_INLINE_BYTES, check_size, describe_response, is_large
from conch.protocols.v2_json.request_cache import JsonRequestCache
from conch.server.core.inference import Inference
from conch.server.frontends.exchange_log import log_http
from conch.server.frontends.offload.fair_queue import LARGE_JOB_BYTES
from conch.server.frontends.offload.pool import OffloadPool, Outcome
from conch.server.frontends.parts import Parts
from conch.server.frontends.request_headers import ForwardedHeaders, Tenants
from conch.server.frontends.v2_http.in_flight import LENGTH_HEADER, InFlight, check_room
from conch.server.observability.tracing.observer import Observer

_BINARY: Final = content_type(b"application/octet-stream")
# In Triton binary tensors are bounded only by sizes being 32-bit integers.
MAX_BINARY_BODY: Final = 2**31 - 1
_NO_BYTES: Final = memoryview(b"")


class ReplyForm:
    """What differs between ports: the content type of binary data, and statuses of errors.

    `binary_type` ends where the size of the JSON part follows; b"" for Triton's header with that size. `statuses` has
    the status of errors whose message matches a pattern.
    """

    __slots__ = ("binary_type", "statuses")

    def __init__(self, binary_type: bytes = b"", statuses: Sequence[tuple[re.Pattern[str], int]] = ()) -> None:
        self.binary_type = binary_type
        self.statuses = statuses

    def status(self, error: ConchError) -> int:
        """Return the status of an error, 0 for that of the HTTP port."""
        return next((status for pattern, status in self.statuses if pattern.search(error.message)), 0)


class HttpInferEndpoint:
    """Decodes requests, passes them to the core, and sends the responses."""

    def __init__(self, parts: Parts, form: ReplyForm | None = None) -> None:
        """Create the endpoint. Raises ConfigError for an invalid pattern of headers to forward."""
        self._form = form or ReplyForm()
        self._inference: Inference = parts.inference
        self._observer: Observer = parts.observer
        self._recorder = parts.recorder
        self._budget: BodyBudget = parts.budget
        self._max_input_bytes: int = parts.options.http_max_input_size
        self._regions: Regions = parts.regions
        self._pool: OffloadPool = parts.codecs
        self._tenants: Tenants = parts.tenants
        self._requests = JsonRequestCache(self._regions)
        forwarded = ForwardedHeaders(
            parts.options.http_header_forward_pattern,
            _is_reserved,
            flag="--http-header-forward-pattern",
            secret=parts.secret_headers,
        )
        self._forwarded = forwarded or None

    def body_limit(self, request: HttpRequest) -> int:
        """Return the limit for a body; that for JSON is lower, because its parsed form takes many times its size."""
        return MAX_BINARY_BODY if LENGTH_HEADER in request.headers else self._max_input_bytes

    def __call__(self, request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        """Answer one request, now or when the model has. Raises ConchError if it is refused."""
        timeline = Timeline()
        log_http(self._recorder, request, reply, timeline)
        trace = self._observer.begin_http(request, name, timeline) if self._observer.on else None
        try:
            if DEADLINE in request.headers:
                set_deadlines(timeline, request.headers[DEADLINE])
            model = self._inference.model(name, version)
            if model.config.decoupled:
                raise Unsupported(
                    "HTTP end point doesn't support models with decoupled transaction policy: "
                    f"use /v2/models/{name}/generate_stream, or ModelStreamInfer over gRPC"
                )
            meter = check_room(self._inference, model, timeline, request, self._tenants)
            call = _InferCall(request, reply, model, version, timeline, trace, meter, self._pool, self._tenants)
            call.form = self._form
            decoded = self._decode(call)
            if decoded is None:
                self._decode_large(call)
            else:
                self._admit(call, *decoded)
        except ConchError as error:
            if trace is not None:
                trace.refused(error)
            raise

    def _admit(self, call: "_InferCall", infer_request: InferRequest, options: OutputOptions) -> None:
        if self._forwarded is not None:
            fields = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in call.request.fields)
            self._forwarded.add(infer_request.parameters, fields)
        call.options = options
        call.admit(self._inference, infer_request, call.respond)

    def _decode(self, call: "_InferCall") -> tuple[InferRequest, OutputOptions] | None:
        """Decode a request; return None for one that is too large to be decoded on the event loop."""
        body, headers = call.request.body, call.request.headers
        coding = headers.get(b"content-encoding")
        if coding is not None:
            plain = decompress_small(body, coding, min(MAX_INLINE_BYTES, self._max_input_bytes))
            if plain is None:
                return None
            body = self._charged(plain)
        header_length = read_header_length(headers.get(LENGTH_HEADER), len(body))
        if header_length == 0:
            return decode_raw_request(call.model.config, call.version, body, call.timeline)
        json_size = len(body) if header_length is None else header_length
        check_size(json_size, self._max_input_bytes)
        if json_size > MAX_INLINE_BYTES:
            return None
        return self._requests.decode(call.model.config.name, call.version, body, header_length, call.timeline)

    def _decode_large(self, call: "_InferCall") -> None:
        """Have a worker process decode the JSON."""
        body, headers = memoryview(call.request.body), call.request.headers
        coding = headers.get(b"content-encoding", b"identity")
        length = headers.get(LENGTH_HEADER)
        tail = _NO_BYTES
        size = len(body)
        if coding != b"identity":
            # The size decides whether other clients' small messages wait for this one.
            plain = decompress_small(body, coding, min(LARGE_JOB_BYTES, self._max_input_bytes))
            if plain is None:
                size = min(size * MAX_RATIO, self._max_input_bytes)
            else:
                body, coding = memoryview(self._charged(plain)), b"identity"
                size = len(body)
        if coding == b"identity":
            coding = b""
            header_length = read_header_length(length, len(body))
            if header_length is not None:
                body, tail, length = body[:header_length], body[header_length:], None
        args = {
            "coding": coding.decode("latin-1"),
            "limit": self._max_input_bytes,
            "header_length": None if length is None else length.decode("latin-1"),
        }
        admit = partial(self._admit_decoded, call, tail)
        call.decode("infer_request", args, [body], admit, size)

    def _admit_decoded(self, call: "_InferCall", tail: memoryview, outcome: Outcome) -> None:
        """Admit a request that a worker process has decoded. Raises ConchError."""
        version, timeline = call.version, call.timeline
        call.model = self._inference.model(call.model.config.name, version)  # which may have been replaced meanwhile
        config = call.model.config
        if outcome.meta["raw"]:
            decoded = decode_raw_request(config, version, self._charged(outcome.parts[0]), timeline)
        else:
            header, unpacked_tail, *packed = outcome.parts
            rest = tail if len(tail) else memoryview(self._charged(unpacked_tail))
            decoded = decode_parts(config.name, version, header, rest, timeline, self._regions, [*packed])
        self._admit(call, *decoded)

    def _charged(self, plain: Buffer) -> Buffer:
        """Charge decompressed data until they are freed. Raises Unavailable."""
        if len(plain) <= UNCHARGED_BYTES:
            return plain
        kept = self._budget.charge_until_freed(plain)
        if kept is None:
            raise Unavailable(no_memory().message, retry_after_s=1.0)
        return kept


def _is_reserved(name: str) -> bool:
    return name in RESERVED_PARAMETERS or name.startswith(RESERVED_PREFIX)


class _InferCall(InFlight):
    """One request, which encodes and sends its response."""

    __slots__ = ("form", "options")

    form: ReplyForm
    options: OutputOptions  # set when it is decoded

    def fail(self, error: ConchError) -> None:
        send_error(self.reply, error, self.form.status(error))

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:  # noqa: ARG002 - there is only one
        """Send the response or the error. Later calls are no-ops."""
        if isinstance(answer, InferResponse):
            accepted = self.request.headers.get(b"accept-encoding", b"")
            coding = preferred_coding(accepted) if accepted else b"identity"
            try:
                if is_large(answer, self.options, compressed=coding != b"identity"):
                    self._encode_large(answer, coding)
                    return
                document, binary = encode_response(answer, self.options, self._classify)
            except ConchError as error:
                self.fail(error)
                return
            parts: list[Buffer] = [document, *binary]
            if coding != b"identity":
                parts = [*compress(parts, coding)]
            self._send(parts, len(document) if any(map(len, binary)) else 0, coding)
        elif answer is not None:
            self.fail(answer)
        elif self.reply.open:
            name = self.model.config.name
            self.fail(ConchError(f"model '{name}' ended the request without a response"))

    def _encode_large(self, response: InferResponse, coding: bytes) -> None:
        """Have a worker process encode the response, then send it."""
        if not self.reply.open:
            return
        options, config = self.options, self.model.config
        place(response.outputs, options)
        described, sent = describe_response(
            response,
            options,
            self.model.labels,
            batched=config.max_batch_size > 0,
            coding="" if coding == b"identity" else coding.decode(),
        )
        kept = [
            None if output["sent"] else tensor.data
            for output, tensor in zip(described["outputs"], response.outputs, strict=True)
            if output["binary"] and not output["placed"]
        ]
        done = partial(self._encoded, kept, coding)
        client = self.client()
        job = self.pool.submit("infer_response", described, sent, done, client=client)
        self.reply.on_disconnect = job.cancel

    def _encoded(self, kept: list[Buffer | None], coding: bytes, outcome: Outcome | ConchError) -> None:
        if isinstance(outcome, ConchError):
            self.fail(outcome)
            return
        length, *written = outcome.parts
        parts: list[Buffer] = [*written]
        if coding == b"identity":
            encoded = iter(written[1:])
            parts = [written[0], *[next(encoded) if data is None else data for data in kept]]
        self._send(parts, int(bytes(length)), coding)

    def _send(self, parts: list[Buffer], json_size: int, coding: bytes) -> None:
        """Send a body; `json_size` is 0 where no bytes follow the JSON."""
        headers = JSON
        if json_size:
            if self.form.binary_type:
                headers = content_type(b"%b%d" % (self.form.binary_type, json_size))
            else:
                headers = _BINARY + header(b"Inference-Header-Content-Length", b"%d" % json_size)
        if coding != b"identity":
            headers += header(b"Content-Encoding", coding)
        self.reply.send(200, headers, *parts)

    def _classify(self, tensor: Tensor, count: int) -> Tensor:
        batched = self.model.config.max_batch_size > 0
        return classify(tensor, count, self.model.labels.get(tensor.name, ()), batched)
