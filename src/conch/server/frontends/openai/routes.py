"""Routes of the OpenAI API, and access to them."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from uuid import uuid4

from conch.base.errors import Cancelled, ConchError, InvalidRequest, NotFound
from conch.domain.generation import DeltaCallback, Generation, GenerationRequest
from conch.domain.llm.chat_prompt import HERMES
from conch.domain.llm.output import OutputParser, PlainOutput
from conch.domain.request import Span, Timeline, TokenMeter
from conch.protocols.access.authorization import MISSING_KEY, Denial
from conch.protocols.http.errors import CHALLENGE
from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.extensions import MAX_REQUEST_ID_CHARACTERS
from conch.protocols.openai.large import MAX_REST_BYTES, join_prompts
from conch.protocols.openai.replies import ChatReplies, CompletionReplies, ReplyOptions
from conch.protocols.openai.requests import (
    ChatCall,
    CompletionCall,
    GenerationCall,
    check_repetition,
    read_chat,
    read_completion,
)
from conch.protocols.v2_json.large import MAX_INLINE_BYTES
from conch.server.core.generative_model import GenerativeModel
from conch.server.frontends.offload.pool import Outcome
from conch.server.frontends.openai.chat import ChatPrompt, OutputForm
from conch.server.frontends.openai.embeddings import EmbeddingsEndpoint
from conch.server.frontends.openai.errors import refusal_of, send_error
from conch.server.frontends.openai.exchange import Exchange
from conch.server.frontends.openai.forms import ChatForm, CompletionForm
from conch.server.frontends.openai.models import PATH as MODELS
from conch.server.frontends.openai.models import OpenAiModels
from conch.server.frontends.openai.tokens import TokensEndpoint
from conch.server.frontends.parts import Parts
from conch.server.observability.tracing.request_trace import Trace

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

PREFIX = "/v1/"
_DENIED = {
    Denial.RESTRICTED: (401, "invalid_auth"),
    Denial.NO_KEY: (401, "invalid_api_key"),
    Denial.SCOPE: (403, "insufficient_permissions"),
    Denial.REPEATED: (400, None),
}
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
# Its value is in every chunk of a stream.
_REQUEST_ID = b"x-request-id"


class OpenAiHttp:
    """Handler of the paths of the OpenAI API. The same clients may call it as on the HTTP port."""

    def __init__(self, parts: Parts) -> None:
        self._inference = parts.inference
        self._tenants = parts.tenants
        self._access = parts.http_access
        self._observer = parts.observer
        self._pool = parts.codecs
        self._prompts = parts.prompts
        self._max_input_bytes = parts.options.http_max_input_size
        self._models = OpenAiModels(parts, int(time.time()))
        tokens = TokensEndpoint(parts, self._models)
        self._posts: dict[str, Callable[[HttpRequest, HttpReply], None]] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completion,
            "/v1/embeddings": EmbeddingsEndpoint(parts),
            TOKENIZE: tokens.tokenize,
            DETOKENIZE: tokens.detokenize,
        }

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request, for which `refusal` is None."""
        post = self._posts.get(request.path)
        try:
            if post is not None:
                post(request, reply)
            else:
                self._models.answer(request.path, request.method, reply)
        except ConchError as error:
            send_error(reply, error)

    def refusal(self, request: HttpRequest) -> HttpRefusal | None:
        """Return why a request is refused whatever its body is; None if that depends on the body."""
        path, method = request.path, request.method
        if path in self._posts:
            refusal = self.denied("inference", request)
            if refusal is not None:
                self._observer.unread_http(request, refusal)
            return refusal or (None if method == b"POST" else wrong_method(request))
        of_models = path == MODELS or path.startswith(MODELS + "/")
        refusal = self.denied("model-repository" if of_models and method != b"GET" else "metadata", request)
        if refusal is not None or (of_models and self._models.has(path, method)):
            return refusal
        return refusal_of(NotFound(f"Invalid URL ({method.decode()} {path})"), 404, "unknown_url")

    def body_limit(self, request: HttpRequest) -> int:
        """Return how large the body of this request may be, in bytes."""
        return MAX_REST_BYTES if request.path in (TOKENIZE, DETOKENIZE) else self._max_input_bytes

    def denied(self, category: str, request: HttpRequest) -> HttpRefusal | None:
        """Return the refusal of a client that may not call this category, None if it may."""
        denied = self._access.denied_http(category, request, openai=True)
        if denied is None:
            return None
        status, code = _DENIED[denied.why]
        if denied.message == MISSING_KEY:  # as in OpenAI's API
            code = None
        valid = " with valid value" if denied.why is Denial.RESTRICTED else ""
        refusal = refusal_of(InvalidRequest(denied.message + valid), status, code)
        if denied.why is Denial.NO_KEY:
            headers, body = refusal.content()
            return HttpRefusal(status, refusal.message, headers + CHALLENGE, body)
        return refusal

    def _chat(self, request: HttpRequest, reply: HttpReply) -> None:
        timeline = Timeline()
        if len(request.body) <= MAX_INLINE_BYTES:
            self._render_chat(request, reply, self._read(request, lambda: read_chat(request.body)), timeline)
            return

        def read(outcome: Outcome) -> None:
            rest, messages = outcome.parts
            self._render_chat(request, reply, self._read(request, lambda: read_chat(rest, messages)), timeline)

        self._read_large("chat", request, reply, read)

    def _render_chat(self, request: HttpRequest, reply: HttpReply, call: ChatCall, timeline: Timeline) -> None:
        """Find the model and render its chat template."""
        trace = self._begin_trace(request, call, timeline)
        with _refusals(trace):
            call_id = _call_id(request, call)
            model, adapter = self._models.find(call.model)
            meter = self._admit(request, model, timeline)

            client = self._tenants.client_of_http(request, reply.peer)

            def begin(prompt: ChatPrompt) -> None:
                self._begin_chat(reply, call, call_id, model, adapter, prompt, timeline, trace, meter, client)

            def rendered(found: ChatPrompt | ConchError) -> None:
                if trace is not None and not isinstance(found, ChatPrompt):
                    trace.refused(found)
                elif trace is not None and not reply.open:
                    trace.refused(Cancelled("request was cancelled by the client"))
                self._continue(reply, begin, found)

            reply.on_disconnect = self._prompts.render(model, call, rendered, client).cancel

    def _begin_chat(
        self,
        reply: HttpReply,
        call: ChatCall,
        call_id: str,
        model: GenerativeModel,
        adapter: str,
        prompt: ChatPrompt,
        timeline: Timeline,
        trace: Trace | None,
        meter: TokenMeter | None,
        client: str,
    ) -> None:
        with _refusals(trace):
            check_repetition(call.params.n, len(prompt.echoed) + (len(prompt.text) if call.repeats_tokens else 0))
            replies = ChatReplies(f"chatcmpl-{call_id}", call.model, int(time.time()), _reply_options(call))
            form = HERMES if prompt.describes_tools else model.config.parameters.get("tool_call_parser", "")
            parser = OutputForm(model.engine.info.chat_template, form, call, prompt.text)
            call = parser.adjusted(call)
            exchange = self._exchange(reply, ChatForm(replies, prompt.echoed), call, 1, parser, trace)
            span = None if trace is None else trace.began(model.version)
            special = call.add_special_tokens
            exchange.begin(
                [self._start(model, adapter, call, prompt.text, timeline, span, meter, client, special=special)]
            )

    def _completion(self, request: HttpRequest, reply: HttpReply) -> None:
        timeline = Timeline()
        if len(request.body) <= MAX_INLINE_BYTES:
            call = self._read(request, lambda: read_completion(request.body))
            self._begin_completion(request, reply, call, timeline)
            return

        def read(outcome: Outcome) -> None:
            rest, *prompts = outcome.parts
            call = self._read(request, lambda: read_completion(rest, join_prompts(outcome.meta, prompts)))
            self._begin_completion(request, reply, call, timeline)

        self._read_large("completion", request, reply, read)

    def _begin_completion(
        self, request: HttpRequest, reply: HttpReply, call: CompletionCall, timeline: Timeline
    ) -> None:
        trace = self._begin_trace(request, call, timeline)
        with _refusals(trace):
            call_id = _call_id(request, call)
            model, adapter = self._models.find(call.model)
            meter = self._admit(request, model, timeline)
            replies = CompletionReplies(f"cmpl-{call_id}", call.model, int(time.time()), _reply_options(call))
            form = CompletionForm(replies, echo=call.echo)
            exchange = self._exchange(reply, form, call, len(call.prompts), PlainOutput, trace)
            span = None if trace is None else trace.began(model.version)
            client, special = self._tenants.client_of_http(request, reply.peer), call.add_special_tokens
            exchange.begin(
                [
                    self._start(model, adapter, call, prompt, timeline, span, meter, client, special=special)
                    for prompt in call.prompts
                ]
            )

    def _read(self, request: HttpRequest, read: Callable[[], _T]) -> _T:
        """Return what `read` reads from the body, and log a body that it refuses. Raises ConchError."""
        try:
            return read()
        except ConchError as error:
            self._observer.unread_http(request, error)
            raise

    def _read_large(self, job: str, request: HttpRequest, reply: HttpReply, then: Callable[[Outcome], None]) -> None:
        """Have a worker process decode a large body, then call `then`."""
        client = self._tenants.client_of_http(request, reply.peer)
        done = partial(self._continue, reply, then)
        reply.on_disconnect = self._pool.submit(job, {}, [request.body], done, client=client).cancel

    def _continue(self, reply: HttpReply, then: Callable[[_T], None], found: _T | ConchError) -> None:
        """Continue a call that waited for a worker process, unless the client has disconnected."""
        try:
            if isinstance(found, ConchError):
                raise found
            if reply.open:
                reply.on_disconnect = None
                then(found)
        except ConchError as error:
            send_error(reply, error)
        except Exception:
            _log.exception("a request of the OpenAI API failed unexpectedly")
            send_error(reply, ConchError("internal error"))

    def _admit(self, request: HttpRequest, model: GenerativeModel, timeline: Timeline) -> TokenMeter | None:
        """Count a request towards the limits of its model and tenant. Raises LimitExceeded."""
        if self._inference.limiter is None:
            return None
        return self._inference.admit(model, timeline, self._tenants.of_http(request))

    def _begin_trace(self, request: HttpRequest, call: GenerationCall, timeline: Timeline) -> Trace | None:
        return self._observer.begin_http(request, call.model, timeline) if self._observer.on else None

    def _exchange(
        self,
        reply: HttpReply,
        form: ChatForm | CompletionForm,
        call: GenerationCall,
        prompts: int,
        parser: Callable[[], OutputParser],
        trace: Trace | None,
    ) -> Exchange:
        return Exchange(
            reply,
            form,
            parser,
            prompts=prompts,
            n=call.params.n,
            stream=call.stream,
            include_usage=call.include_usage,
            trace=trace,
        )

    def _start(
        self,
        model: GenerativeModel,
        adapter: str,
        call: GenerationCall,
        prompt: str | Sequence[int],
        timeline: Timeline,
        span: Span | None,
        meter: TokenMeter | None,
        client: str,
        *,
        special: bool,
    ) -> Callable[[DeltaCallback], Generation]:
        """Return a function that starts the generation for one prompt."""
        request = GenerationRequest(
            id=uuid4().hex,
            model_name=model.config.name,
            prompt=prompt,
            params=call.params,
            version=model.version,
            adapter=adapter,
            priority=call.priority,
            add_special_tokens=special,
            return_prompt=call.return_prompt,
            prompt_only=call.prompt_only,
            timeline=Timeline(timeline.received),
            span=span,
            meter=meter,
            client=client,
        )
        return partial(model.generate, request)


def wrong_method(request: HttpRequest) -> HttpRefusal:
    """Return the refusal of a method that the path does not have."""
    return refusal_of(InvalidRequest(f"Not allowed to {request.method.decode()} on {request.path}"), 405)


def _call_id(request: HttpRequest, call: GenerationCall) -> str:
    """Return the part of an answer's id that the client may choose, by a header or a field, as with vLLM."""
    sent = request.headers.get(_REQUEST_ID, b"")
    if len(sent) > MAX_REQUEST_ID_CHARACTERS:
        text = f"the header 'X-Request-Id' may have {MAX_REQUEST_ID_CHARACTERS} characters at most, got {len(sent)}"
        raise InvalidRequest(text)
    return sent.decode("latin-1") or call.request_id or uuid4().hex


def _reply_options(call: GenerationCall) -> ReplyOptions:
    return ReplyOptions(
        include_usage=call.include_usage,
        continuous_usage=call.continuous_usage,
        token_ids=call.token_ids,
        tokens_as_ids=call.tokens_as_ids,
        prompt_logprobs=call.params.prompt_logprobs is not None,
    )


@contextmanager
def _refusals(trace: Trace | None) -> Iterator[None]:
    """Record in the trace of a call, if there is one, that it is refused."""
    try:
        yield
    except ConchError as error:
        if trace is not None:
            trace.refused(error)
        raise
