"""Embeddings, of every API: the texts of a call as inference requests of the model, their vectors as one answer.

What differs between the APIs is an `EmbeddingDialect`: how a body is read, and the forms of answers and errors.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns

import numpy as np
import numpy.typing as npt

from conch.base.errors import BackendError, Cancelled, ConchError, NotFound, Unavailable, Unsupported
from conch.domain.llm.embedding_form import TOKEN_IDS_MODEL, EmbeddingForm
from conch.domain.request import Admitted, InferRequest, InferResponse, Timeline, TokenMeter
from conch.domain.tensor import Buffer
from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.embeddings import EmbeddingCall, read_embedding
from conch.protocols.openai.fields import InvalidField
from conch.protocols.openai.large import join_prompts
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.server.core.generative_model import GenerativeModel
from conch.server.core.served_model import ServedModel
from conch.server.frontends.offload import jobs
from conch.server.frontends.offload.pool import OffloadPool, Outcome
from conch.server.frontends.openai.calls import CallReader
from conch.server.frontends.openai.errors import JSON, absent, refusal_of, send_refusal
from conch.server.frontends.parts import Parts
from conch.server.observability.tracing.request_trace import Trace

# Requests of one call in flight: enough for full batches and busy instances, while a call of many texts neither fills
# the queue nor delays other calls until all of it is done.
_MAX_IN_FLIGHT = 16


def makes_embeddings(model: ServedModel) -> bool:
    """Whether a model's tensors are those of embeddings."""
    if isinstance(model, GenerativeModel):
        return False
    try:
        EmbeddingForm(model.config)
    except Unsupported:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingDialect:
    """How an API reads calls for embeddings, and writes answers and errors.

    `read` reads a small body, `join` what a worker process has made of a large one by `job`. `write` is the job that
    writes an answer: of the vectors, and of model, tokens, encoding and the duration so far in ns.
    """

    job: str
    read: Callable[[Buffer], EmbeddingCall]
    join: Callable[[Outcome], EmbeddingCall]
    write: str
    refusal: Callable[[ConchError], HttpRefusal] = refusal_of


def _joined(outcome: Outcome) -> EmbeddingCall:
    rest, *inputs = outcome.parts
    return read_embedding(rest, join_prompts(outcome.meta, inputs))


EMBEDDINGS = EmbeddingDialect(job="embedding", read=read_embedding, join=_joined, write="embeddings")


def embeddings_endpoint(parts: Parts, dialect: EmbeddingDialect = EMBEDDINGS) -> CallReader[EmbeddingCall]:
    """Return the handler of a path."""
    begin = _Embeddings(parts, dialect).begin
    return CallReader(parts, dialect.job, dialect.read, dialect.join, begin, dialect.refusal)


class _Embeddings:
    """Begins the calls of a path."""

    def __init__(self, parts: Parts, dialect: EmbeddingDialect) -> None:
        self._dialect = dialect
        self._inference = parts.inference
        self._tenants = parts.tenants
        self._pool = parts.codecs
        self._observer = parts.observer
        self._lists = parts.models_are_public

    def begin(self, request: HttpRequest, reply: HttpReply, call: EmbeddingCall, timeline: Timeline) -> None:
        """Send the texts of a call to the model. Raises ConchError if it is refused."""
        trace = self._observer.begin_http(request, call.model, timeline) if self._observer.on else None
        try:
            model = self._find(call.model)
            model, form = self._form(model, call)
            _check_dimensions(form, call)
            meter = None
            if self._inference.limiter is not None:
                meter = self._inference.admit(model, timeline, self._tenants.of_http(request))
            requests = form.requests(
                call.inputs, model.version, timeline, truncate=call.truncate, keep_last=call.keep_last
            )
            client = self._tenants.client_of_http(request, reply.peer)
            exchange = _Exchange(self._dialect, reply, model, form, call, requests, trace, self._pool, client, meter)
            exchange.begin(timeline.received)
        except ConchError as error:
            if trace is not None:
                trace.refused(error)
            raise

    def _form(self, model: ServedModel, call: EmbeddingCall) -> tuple[ServedModel, EmbeddingForm]:
        """Return the model that the inputs are for, and its form: token ids may be for another one."""
        form = EmbeddingForm(model.config)
        other = model.config.parameters.get(TOKEN_IDS_MODEL, "")
        if not other or form.takes_tokens or isinstance(call.inputs[0], str):
            return model, form
        model = self._find(other)
        return model, EmbeddingForm(model.config)

    def _find(self, name: str) -> ServedModel:
        self._inference.check_accepting()
        try:
            model = self._inference.model(name, None)
        except (NotFound, Unavailable) as error:
            models = self._inference.models() if self._lists else ()
            raise absent(
                self._inference, name, error, (served.config.name for served in models if makes_embeddings(served))
            ) from None
        if isinstance(model, GenerativeModel):
            raise Unsupported(f"The model `{name}` generates text and makes no embeddings; /v1/completions serves it.")
        return model


class _Exchange:
    """One call until all of its vectors have been computed.

    The model cannot be stopped meanwhile: a call that began with one version ends with it.
    """

    def __init__(
        self,
        dialect: EmbeddingDialect,
        reply: HttpReply,
        model: ServedModel,
        form: EmbeddingForm,
        call: EmbeddingCall,
        requests: Iterator[tuple[list[int], InferRequest]],
        trace: Trace | None,
        pool: OffloadPool,
        client: str,
        meter: TokenMeter | None,
    ) -> None:
        self._dialect = dialect
        self._received = 0
        self._meter = meter
        self._reply = reply
        self._pool = pool
        self._client = client
        self._model = model
        self._form = form
        self._call = call
        self._requests = requests
        self._trace = trace
        self._span = trace.began(model.version) if trace is not None else None
        self._admitted: list[Admitted] = []
        self._in_flight = 0  # requests of this call
        self._advancing = False
        self._ended = False
        self._vectors: list[npt.NDArray[np.float32]] = [np.empty(0, np.float32)] * len(call.inputs)
        self._missing = len(call.inputs)
        self._tokens = 0

    def begin(self, received: int) -> None:
        """Send the first requests of a call that was received at this time, in ns of the monotonic clock."""
        self._received = received
        self._model.enter()
        self._advance()
        if self._reply.open and not self._ended:
            self._reply.on_disconnect = self._cancel

    def _advance(self) -> None:
        """Send requests as long as there are some and the model may hold them."""
        if self._advancing:  # called back at once, for a cached response; the loop below continues
            return
        self._advancing = True
        try:
            while not self._ended and self._in_flight < _MAX_IN_FLIGHT:
                sent = next(self._requests, None)
                if sent is None:
                    break
                self._send(*sent)
        except ConchError as error:
            self._fail(error)
        finally:
            self._advancing = False

    def _send(self, places: list[int], request: InferRequest) -> None:
        request.meter = self._meter
        self._in_flight += 1
        admitted = self._model.submit_within(self._span, request, partial(self._answered, places, request))
        self._admitted = [*(pending for pending in self._admitted if not pending.cancelled), admitted]

    def _answered(
        self, places: list[int], request: InferRequest, answer: InferResponse | ConchError | None, final: bool
    ) -> None:
        if self._ended or not final:
            return
        self._in_flight -= 1
        try:
            self._store(places, request, answer)
        except ConchError as error:
            self._fail(error)
        else:
            if self._missing:
                self._advance()
            else:
                self._finish()

    def _store(self, places: list[int], request: InferRequest, answer: InferResponse | ConchError | None) -> None:
        if isinstance(answer, ConchError):
            raise answer
        if answer is None:
            raise BackendError(f"model '{self._call.model}' ended the request without a response")
        vectors = self._form.vectors(request, answer)
        for place, vector in zip(places, vectors.values, strict=True):
            self._vectors[place] = vector
        self._tokens += vectors.tokens
        self._missing -= len(places)

    def _finish(self) -> None:
        vectors = self._vectors
        if self._call.dimensions is not None:
            vectors = self._form.cut(vectors, self._call.dimensions)
        self._end(None)
        if self._meter is not None:
            self._meter.add_tokens(self._tokens, monotonic_ns())
        described = {
            "model": self._call.model,
            "tokens": self._tokens,
            "encoding": self._call.encoding,
            "duration_ns": monotonic_ns() - self._received,
        }
        parts = [np.ascontiguousarray(vector, "<f4").data for vector in vectors]
        if sum(part.nbytes for part in parts) <= MAX_INLINE_BYTES:
            _, (body,) = jobs.run(self._dialect.write, described, parts)
            self._reply.send(200, JSON, body)
            self._end_trace(None)
            return
        try:
            self._pool.submit(self._dialect.write, described, parts, self._written, client=self._client)
        except ConchError as error:
            self._written(error)

    def _written(self, outcome: Outcome | ConchError) -> None:
        """Send the answer."""
        if isinstance(outcome, ConchError):
            send_refusal(self._reply, self._dialect.refusal(outcome))
            self._end_trace(outcome)
        else:
            self._reply.send(200, JSON, outcome.parts[0])
            self._end_trace(None)

    def _fail(self, error: ConchError) -> None:
        self._end(error)
        send_refusal(self._reply, self._dialect.refusal(error))
        self._end_trace(error)

    def _cancel(self) -> None:
        """Cancel: the client has disconnected."""
        if not self._ended:
            error = Cancelled("request was cancelled by the client")
            self._end(error)
            self._end_trace(error)

    def _end(self, error: ConchError | None) -> None:
        """Release the model. After an error, cancel the requests in flight."""
        self._ended = True
        self._model.leave()
        if error is not None:
            for pending in self._admitted:
                pending.cancel()
        self._admitted = []

    def _end_trace(self, error: ConchError | None) -> None:
        """End the trace: the client has been answered."""
        if self._trace is not None:
            self._trace.root.prompt_tokens = self._tokens
            self._trace.answered(error)


def _check_dimensions(form: EmbeddingForm, call: EmbeddingCall) -> None:
    if call.dimensions is not None:
        try:
            form.check_dimensions(call.dimensions)
        except ConchError as error:
            raise InvalidField("dimensions", error.message) from None
