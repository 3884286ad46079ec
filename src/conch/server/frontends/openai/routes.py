"""Routes of the OpenAI API, and access to them."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from conch.base.errors import Cancelled, ConchError, InvalidRequest, NotFound
from conch.domain.generation import GenerationRequest
from conch.domain.llm.chat_prompt import HERMES
from conch.domain.llm.output import OutputParser, PlainOutput
from conch.domain.request import Span, Timeline, TokenMeter
from conch.protocols.access.authorization import MISSING_KEY, Denial
from conch.protocols.http.errors import CHALLENGE
from conch.protocols.http.message import HttpRefusal, HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.choices import ChatForm, CompletionForm, ReplyOptions
from conch.protocols.openai.large import MAX_REST_BYTES, join_prompts
from conch.protocols.openai.requests import (
    MAX_REQUEST_ID_CHARACTERS,
    ChatCall,
    CompletionCall,
    GenerationCall,
    check_repetition,
    read_chat,
    read_completion,
)
from conch.server.core.generative_model import GenerativeModel
from conch.server.frontends.offload.pool import Outcome
from conch.server.frontends.openai.calls import CallReader, continue_call
from conch.server.frontends.openai.chat import ChatPrompt, OutputForm
from conch.server.frontends.openai.embeddings import embeddings_endpoint
from conch.server.frontends.openai.errors import refusal_of, send_error
from conch.server.frontends.openai.exchange import Exchange
from conch.server.frontends.openai.models import PATH as MODELS
from conch.server.frontends.openai.models import OpenAiModels
from conch.server.frontends.openai.tokens import TokensEndpoint
from conch.server.frontends.parts import Parts
from conch.server.observability.tracing.request_trace import Trace

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
        self._prompts = parts.prompts
        self._max_input_bytes = parts.options.http_max_input_size
        self._models = OpenAiModels(parts, int(time.time()))
        tokens = TokensEndpoint(parts, self._models)
        self._posts: dict[str, Callable[[HttpRequest, HttpReply], None]] = {
            "/v1/chat/completions": CallReader(parts, "chat", read_chat, _joined_chat, self._begin_chat),
            "/v1/completions": CallReader(
                parts, "completion", read_completion, _joined_completion, self._begin_completion
            ),
            "/v1/embeddings": embeddings_endpoint(parts),
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

    def _begin_chat(self, request: HttpRequest, reply: HttpReply, call: ChatCall, timeline: Timeline) -> None:
        """Find the model and render its chat template."""
        trace = self._begin_trace(request, call, timeline)
        with _refusals(trace):
            admitted = self._admit(request, reply, call, timeline, trace)
            rendered = partial(self._rendered, admitted, call)
            reply.on_disconnect = self._prompts.render(admitted.model, call, rendered, admitted.client).cancel

    def _rendered(self, admitted: "_AdmittedCall", call: ChatCall, prompt: ChatPrompt | ConchError) -> None:
        trace, reply = admitted.trace, admitted.reply
        if trace is not None and isinstance(prompt, ConchError):
            trace.refused(prompt)
        elif trace is not None and not reply.open:
            trace.refused(Cancelled("request was cancelled by the client"))
        continue_call(reply, partial(self._generate_chat, admitted, call), prompt)

    def _generate_chat(self, admitted: "_AdmittedCall", call: ChatCall, prompt: ChatPrompt) -> None:
        model = admitted.model
        with _refusals(admitted.trace):
            check_repetition(call.params.n, len(prompt.echoed) + (len(prompt.text) if call.repeats_tokens else 0))
            calls = HERMES if prompt.describes_tools else model.config.parameters.get("tool_call_parser", "")
            parser = OutputForm(model.engine.info.chat_template, calls, call, prompt.text)
            answer_id = f"chatcmpl-{admitted.id}"
            form = ChatForm(answer_id, call.model, int(time.time()), _reply_options(call), prompt.echoed)
            admitted.generate(parser.adjusted(call), [prompt.text], form, parser)

    def _begin_completion(
        self, request: HttpRequest, reply: HttpReply, call: CompletionCall, timeline: Timeline
    ) -> None:
        trace = self._begin_trace(request, call, timeline)
        with _refusals(trace):
            admitted = self._admit(request, reply, call, timeline, trace)
            answer_id = f"cmpl-{admitted.id}"
            form = CompletionForm(answer_id, call.model, int(time.time()), _reply_options(call), call.echo)
            admitted.generate(call, call.prompts, form, PlainOutput)

    def _admit(
        self, request: HttpRequest, reply: HttpReply, call: GenerationCall, timeline: Timeline, trace: Trace | None
    ) -> "_AdmittedCall":
        """Find the model and count the call towards the limits of model and tenant. Raises ConchError."""
        call_id = _call_id(request, call)
        model, adapter = self._models.find(call.model)
        meter = None
        if self._inference.limiter is not None:
            meter = self._inference.admit(model, timeline, self._tenants.of_http(request))
        client = self._tenants.client_of_http(request, reply.peer)
        return _AdmittedCall(reply, call_id, model, adapter, timeline, trace, meter, client)

    def _begin_trace(self, request: HttpRequest, call: GenerationCall, timeline: Timeline) -> Trace | None:
        return self._observer.begin_http(request, call.model, timeline) if self._observer.on else None


@dataclass(frozen=True, slots=True)
class _AdmittedCall:
    """A call that generates, between its admission and the start of its generations."""

    reply: HttpReply
    id: str
    model: GenerativeModel
    adapter: str
    timeline: Timeline
    trace: Trace | None
    meter: TokenMeter | None
    client: str

    def generate(
        self,
        call: ChatCall | CompletionCall,
        prompts: Sequence[str | Sequence[int]],
        form: ChatForm | CompletionForm,
        parser: Callable[[], OutputParser],
    ) -> None:
        """Start the generation of each prompt. Raises ConchError."""
        exchange = Exchange(
            self.reply,
            form,
            parser,
            prompts=len(prompts),
            n=call.params.n,
            stream=call.stream,
            include_usage=call.include_usage,
            trace=self.trace,
        )
        span = None if self.trace is None else self.trace.began(self.model.version)
        exchange.begin([partial(self.model.generate, self._request(call, prompt, span)) for prompt in prompts])

    def _request(
        self, call: ChatCall | CompletionCall, prompt: str | Sequence[int], span: Span | None
    ) -> GenerationRequest:
        return GenerationRequest(
            id=uuid4().hex,
            model_name=self.model.config.name,
            prompt=prompt,
            params=call.params,
            version=self.model.version,
            adapter=self.adapter,
            priority=call.priority,
            add_special_tokens=call.add_special_tokens,
            return_prompt=call.return_prompt,
            prompt_only=call.prompt_only,
            timeline=Timeline(self.timeline.received),
            span=span,
            meter=self.meter,
            client=self.client,
        )


def _joined_chat(outcome: Outcome) -> ChatCall:
    rest, messages = outcome.parts
    return read_chat(rest, messages)


def _joined_completion(outcome: Outcome) -> CompletionCall:
    rest, *prompts = outcome.parts
    return read_completion(rest, join_prompts(outcome.meta, prompts))


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
