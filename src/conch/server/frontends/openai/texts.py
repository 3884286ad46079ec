"""Embeddings, rerank, score, classify and pooling: the texts of a call as inference requests, their rows as one answer.

Models with a tokenizer in their version folder (`server/core/text_encoder.py`) and those that take texts themselves
(`domain/llm/text_form.py`) answer the same paths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns

import numpy as np

from conch.base.errors import BackendError, Cancelled, ConchError, NotFound, Unavailable, Unsupported
from conch.domain.llm.text_form import TOKEN_IDS_MODEL, TextForm, cut
from conch.domain.llm.text_model import Task
from conch.domain.request import Admitted, InferRequest, InferResponse, Timeline, TokenMeter
from conch.domain.tensor import Buffer
from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.embeddings import EmbeddingCall, read_embedding
from conch.protocols.openai.fields import InvalidField
from conch.protocols.openai.large import join_prompts
from conch.protocols.openai.text_calls import PROMPTS, READERS, Rows, TextCall, join_call, of_embedding
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.server.core.generative_model import GenerativeModel
from conch.server.core.served_model import ServedModel
from conch.server.core.text_encoder import Text, TextEncoder
from conch.server.frontends.offload import jobs
from conch.server.frontends.offload.pool import Outcome
from conch.server.frontends.openai.calls import CallDialect, CallReader
from conch.server.frontends.openai.errors import JSON, absent, refusal_of, send_refusal
from conch.server.frontends.openai.text_feeds import EncoderFeed, Feed, FormFeed
from conch.server.frontends.parts import Parts
from conch.server.observability.tracing.request_trace import Trace

_SERVED_BY = {
    Task.EMBED: "makes vectors: /v1/embeddings, /v2/embed, and by their cosines /v1/rerank and /v1/score serve it",
    Task.SCORE: "scores pairs of texts: /v1/rerank, /v1/score and /v1/classify serve it",
    Task.CLASSIFY: "classifies texts: /v1/classify and /pooling serve it",
}
_ABLE = {
    Task.EMBED: (Task.EMBED,),
    Task.SCORE: (Task.SCORE, Task.EMBED),
    Task.CLASSIFY: (Task.CLASSIFY, Task.SCORE),
}


def serves_texts(model: ServedModel) -> bool:
    """Whether a model answers these paths."""
    if model.encoder is not None:
        return True
    if isinstance(model, GenerativeModel):
        return False
    try:
        TextForm(model.config)
    except Unsupported:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDialect(CallDialect[TextCall]):
    """How an API reads calls about texts, and writes answers and errors.

    `write` is the job that writes an answer: of the rows, and of model, tokens, encoding, the duration so far in ns,
    `options` of the call, labels and the shapes of the rows.
    """

    write: str


def _joined(outcome: Outcome) -> TextCall:
    return join_call(outcome.meta, outcome.parts)


def embedding_dialect(
    read: Callable[..., EmbeddingCall],
    write: str,
    job: str = "embedding",
    refusal: Callable[[ConchError], HttpRefusal] = refusal_of,
) -> TextDialect:
    """Return the dialect of an API of embeddings. `read` reads a body, or what a worker left of it and its inputs."""

    def read_body(body: Buffer) -> TextCall:
        return of_embedding(read(body))

    def join(outcome: Outcome) -> TextCall:
        rest, *inputs = outcome.parts
        return of_embedding(read(rest, join_prompts(outcome.meta, inputs)))

    return TextDialect(job=job, read=read_body, join=join, write=write, refusal=refusal)


_EMBEDDINGS = embedding_dialect(read_embedding, "embeddings")


def texts_of(kind: str) -> TextDialect:
    """Return the dialect of embeddings, or of a kind of call in `protocols/openai/text_calls.py`."""
    if kind == "embedding":
        return _EMBEDDINGS
    return TextDialect(job=f"text_{kind}", read=READERS[kind], join=_joined, write="text_answer")


def text_endpoint(parts: Parts, dialect: TextDialect) -> CallReader[TextCall]:
    """Return the handler of a path."""
    return CallReader(parts, dialect, _Texts(parts, dialect).begin)


class _Texts:
    """Begins the calls of a path."""

    def __init__(self, parts: Parts, dialect: TextDialect) -> None:
        self._dialect = dialect
        self._inference = parts.inference
        self._tenants = parts.tenants
        self._pool = parts.codecs
        self._observer = parts.observer
        self._lists = parts.models_are_public

    def begin(self, request: HttpRequest, reply: HttpReply, call: TextCall, timeline: Timeline) -> None:
        """Send the texts of a call to the model. Raises ConchError if it is refused."""
        trace = self._observer.begin_http(request, call.model, timeline) if self._observer.on else None
        try:
            model = self._find(call.model)
            if model.encoder is not None:
                feed, number, finish = _encoded(model, model.encoder, call, timeline)
            else:
                model, feed, number, finish = self._formed(model, call, timeline)
            if call.dimensions is not None:
                _check_dimensions(feed, call.dimensions)
                finish = partial(cut, dimensions=call.dimensions)
            meter = None
            if self._inference.limiter is not None:
                meter = self._inference.admit(model, timeline, self._tenants.of_http(request))
            client = self._tenants.client_of_http(request, reply.peer)
            answer = partial(self._answer, reply, call, finish, client, timeline.received)
            # A batch's executions cannot be stopped for a client: they are as short as possible.
            most = feed.max_in_flight if request.tenant is None else 1
            _Exchange(reply, model, feed, number, trace, meter, answer, self._dialect.refusal).begin(most)
        except ConchError as error:
            if trace is not None:
                trace.refused(error)
            raise

    def _find(self, name: str) -> ServedModel:
        self._inference.check_accepting()
        try:
            model = self._inference.model(name, None)
        except (NotFound, Unavailable) as error:
            models = self._inference.models() if self._lists else ()
            raise absent(
                self._inference, name, error, (served.config.name for served in models if serves_texts(served))
            ) from None
        if isinstance(model, GenerativeModel):
            raise Unsupported(f"The model `{name}` generates text and makes no embeddings; /v1/completions serves it.")
        return model

    def _formed(
        self, model: ServedModel, call: TextCall, timeline: Timeline
    ) -> "tuple[ServedModel, Feed, int, Callable[[Rows], Rows]]":
        """Return the model that the texts are for, its feed, how many rows it gives, and what makes the answer's rows.

        Token ids may be for another model. Raises Unsupported.
        """
        form = TextForm(model.config)
        _check_task(call, form.task)
        if call.by_token or (call.raw and form.task is Task.EMBED):
            raise Unsupported(
                f"The model `{call.model}` gives neither vectors of tokens nor other than its own vectors."
            )
        other = model.config.parameters.get(TOKEN_IDS_MODEL, "")
        if other and not form.takes_tokens and not isinstance(call.texts[0], str):
            model = self._find(other)
            form = TextForm(model.config)
        texts, pairs, finish = [*call.texts], call.others, _unchanged
        if pairs and form.task is Task.EMBED:
            texts, pairs, finish = [*texts, *pairs], (), partial(_cosines, len(texts))
        elif pairs:
            texts = [texts[place % len(texts)] for place in range(len(pairs))]
        # Those that cannot truncate refuse what is too long; a rerank asks for the model's maximum by default.
        requests = form.requests(
            texts,
            model.version,
            timeline,
            pairs=pairs,
            truncate=call.limit or None,
            keep_last=call.keep_last,
            document_tokens=call.document_tokens if pairs else None,
            raw=call.raw,
        )
        feed = FormFeed(form, requests)
        feed.truncated = sum(not isinstance(text, str) and len(text) > call.limit > 0 for text in texts)
        return model, feed, len(texts), finish

    def _answer(
        self,
        reply: HttpReply,
        call: TextCall,
        finish: Callable[[Rows], Rows],
        client: str,
        received: int,
        rows: Rows,
        feed: Feed,
        done: Callable[[ConchError | None], None],
    ) -> None:
        """Answer with the rows of all texts; `done` ends the trace."""
        rows = [np.ascontiguousarray(row, "<f4") for row in finish(rows)]
        described = {
            "model": call.model,
            "tokens": feed.tokens,
            "encoding": call.options.get("encoding"),
            "duration_ns": monotonic_ns() - received,
            "options": call.options,
            "labels": feed.labels,
            "shapes": [row.shape for row in rows],
        }
        if feed.truncated:
            reply.note_degraded("prompt_truncated")
        written = partial(self._written, reply, done)
        parts = [row.data.cast("B") for row in rows]
        if sum(map(len, parts)) <= MAX_INLINE_BYTES:
            _, (body,) = jobs.run(self._dialect.write, described, parts)
            reply.send(200, JSON, body)
            done(None)
            return
        try:
            self._pool.submit(self._dialect.write, described, parts, written, client=client)
        except ConchError as error:
            written(error)

    def _written(
        self,
        reply: HttpReply,
        done: Callable[[ConchError | None], None],
        outcome: Outcome | ConchError,
    ) -> None:
        """Send an answer that a worker has written."""
        if isinstance(outcome, ConchError):
            send_refusal(reply, self._dialect.refusal(outcome))
            done(outcome)
        else:
            reply.send(200, JSON, outcome.parts[0])
            done(None)


def _encoded(
    model: ServedModel, encoder: TextEncoder, call: TextCall, timeline: Timeline
) -> "tuple[Feed, int, Callable[[Rows], Rows]]":
    """Return the feed of a model with a tokenizer, how many rows it gives, and what makes the answer's rows of them."""
    task = encoder.model.task
    _check_task(call, task)
    if call.by_token and not encoder.model.tokens:
        raise Unsupported(f"The model `{call.model}` has no output with vectors of tokens.")
    texts: list[Text] = [*call.texts]
    finish = _unchanged
    if call.others and task is Task.EMBED:
        texts, finish = [*texts, *call.others], partial(_cosines, len(texts))
    elif call.others:
        firsts = [str(text) for text in call.texts]
        texts = [(firsts[place % len(firsts)], other) for place, other in enumerate(call.others)]
    prompts = encoder.model.prompts
    prefix = next(
        (prompts[name] for name in PROMPTS.get(call.options.get("input_type") or "", ()) if name in prompts), ""
    )
    if prefix:
        texts = [f"{prefix}{text}" for text in texts]
    return EncoderFeed(model, encoder, texts, call, timeline), len(texts), finish


def _check_task(call: TextCall, task: Task) -> None:
    """Raise Unsupported, with what serves the model, if it cannot do what a call asks for."""
    if call.task is not None and task not in _ABLE[call.task]:
        raise Unsupported(f"The model `{call.model}` {_SERVED_BY[task]}.")


def _check_dimensions(feed: Feed, dimensions: int) -> None:
    try:
        feed.check_dimensions(dimensions)
    except ConchError as error:
        raise InvalidField("dimensions", error.message) from None


def _unchanged(rows: Rows) -> Rows:
    return rows


def _cosines(firsts: int, rows: Rows) -> Rows:
    """Return the cosines of vectors: of each after the `firsts` with that of its place, or with the only one."""
    units = [row / max(float(np.linalg.norm(row)), 1e-12) for row in rows]
    return [np.array([units[place % firsts] @ unit], np.float32) for place, unit in enumerate(units[firsts:])]


class _Exchange:
    """One call until all of its rows have been computed.

    The model cannot be stopped meanwhile: a call that began with one version ends with it.
    """

    def __init__(
        self,
        reply: HttpReply,
        model: ServedModel,
        feed: Feed,
        number: int,
        trace: Trace | None,
        meter: TokenMeter | None,
        answer: Callable[[Rows, Feed, Callable[[ConchError | None], None]], None],
        refusal: Callable[[ConchError], HttpRefusal],
    ) -> None:
        self._refusal = refusal
        self._reply = reply
        self._model = model
        self._feed = feed
        self._trace = trace
        self._meter = meter
        self._answer = answer
        self._span = trace.began(model.version) if trace is not None else None
        self._admitted: list[Admitted] = []
        self._in_flight = 0  # requests of this call
        self._most = 0
        self._advancing = False
        self._ended = False
        self._rows = [np.empty(0, np.float32)] * number
        self._missing = number

    def begin(self, most: int) -> None:
        """Send the first requests; `most` may be in flight at a time."""
        self._most = most
        self._model.enter()
        self._advance(None)
        if self._reply.open and not self._ended:
            self._reply.on_disconnect = self._cancel

    def _advance(self, error: ConchError | None) -> None:
        """Send requests as long as there are some and the model may hold them."""
        if self._advancing or self._ended:  # called back at once, for a cached response; the loop below continues
            return
        if error is not None:
            self._fail(error)
            return
        self._advancing = True
        try:
            while not self._ended and self._in_flight < self._most:
                sent = self._feed.take()
                if sent is None:
                    self._feed.fetch(self._advance)
                    break
                self._send(*sent)
        except ConchError as refusal:
            self._fail(refusal)
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
                self._advance(None)
            else:
                self._finish()

    def _store(self, places: list[int], request: InferRequest, answer: InferResponse | ConchError | None) -> None:
        if isinstance(answer, ConchError):
            raise answer
        if answer is None:
            raise BackendError(f"model '{self._model.config.name}' ended the request without a response")
        for place, row in zip(places, self._feed.rows(request, answer), strict=True):
            self._rows[place] = row
        self._missing -= len(places)

    def _finish(self) -> None:
        self._end(None)
        if self._meter is not None:
            self._meter.add_tokens(self._feed.tokens, monotonic_ns())
        self._answer(self._rows, self._feed, self._end_trace)

    def _fail(self, error: ConchError) -> None:
        self._end(error)
        send_refusal(self._reply, self._refusal(error))
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
            self._trace.root.prompt_tokens = self._feed.tokens
            self._trace.answered(error)
