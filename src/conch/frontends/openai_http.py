"""The OpenAI API over HTTP: which path means what, and who may call it."""

import hmac
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from uuid import uuid4

from conch.core.generative import GenerativeModel
from conch.core.inference import Inference
from conch.core.lifecycle import ModelControl
from conch.errors import ConchError, InvalidRequest, NotFound
from conch.frontends.http_message import HttpRefusal, HttpRequest
from conch.frontends.http_reply import HttpReply
from conch.frontends.http_trace import begin_trace
from conch.frontends.openai_chat_output import OutputForm
from conch.frontends.openai_chat_prompt import HERMES, describes_tools, render_prompt
from conch.frontends.openai_embeddings import EmbeddingsEndpoint
from conch.frontends.openai_errors import refusal_of, send_error, send_refusal
from conch.frontends.openai_exchange import Exchange
from conch.frontends.openai_forms import ChatForm, CompletionForm
from conch.frontends.openai_models import PATH as MODELS
from conch.frontends.openai_models import OpenAiModels
from conch.frontends.openai_tokens import TokensEndpoint
from conch.frontends.restrictions import Restrictions
from conch.generation import Generation, GenerationRequest, Listen
from conch.llm.output import OutputParser, PlainOutput
from conch.observability.observer import Observer
from conch.observability.request_trace import Trace
from conch.protocol.openai_replies import ChatReplies, CompletionReplies, ReplyOptions
from conch.protocol.openai_requests import Call, ChatCall, CompletionCall, read_chat, read_completion
from conch.request import Span, Timeline

PREFIX = "/v1/"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"


class OpenAiHttp:
    """Handler of the paths of the OpenAI API.

    With `api_keys`, a client must send one of them as a bearer token; `restrictions` are those of the HTTP port.
    `lora_separator` stands between the name of a model and that of one of its LoRA adapters.
    """

    def __init__(
        self,
        inference: Inference,
        control: ModelControl,
        *,
        api_keys: Sequence[str] = (),
        lora_separator: str = "_lora_",
        restrictions: Restrictions | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._models = OpenAiModels(inference, control, lora_separator, int(time.time()))
        self._keys = [key.encode() for key in api_keys]
        self._restrictions = restrictions or None  # empty ones are not looked at
        self._observer = observer or Observer()
        tokens = TokensEndpoint(self._models)
        self._posts: dict[str, Callable[[HttpRequest, HttpReply], None]] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completion,
            "/v1/embeddings": EmbeddingsEndpoint(inference, self._observer),
            TOKENIZE: tokens.tokenize,
            DETOKENIZE: tokens.detokenize,
        }

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        refusal = self.refusal(request)
        if refusal is not None:
            send_refusal(reply, refusal)
            return
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
        if not self._has_key(request):
            return refusal_of(InvalidRequest("Incorrect API key provided."), 401, "invalid_api_key")
        path, method = request.path, request.method
        if path in self._posts:
            return self.denied("inference", request) if method == b"POST" else wrong_method(request)
        if path == MODELS or path.startswith(MODELS + "/"):
            refusal = self.denied("metadata" if method == b"GET" else "model-repository", request)
            if refusal is not None or self._models.has(path, method):
                return refusal
        return refusal_of(NotFound(f"Invalid URL ({method.decode()} {path})"), 404, "unknown_url")

    def denied(self, category: str, request: HttpRequest) -> HttpRefusal | None:
        """Return why this client may not call what belongs to this category of restrictions, None if it may."""
        if self._restrictions is None:
            return None
        header = self._restrictions.missing(category, lambda key: request.headers.get(key.encode(), b""))
        if header is None:
            return None
        error = InvalidRequest(f"This API is restricted, expecting header '{header}' with valid value")
        return refusal_of(error, 401, "invalid_auth")

    def _has_key(self, request: HttpRequest) -> bool:
        if not self._keys:
            return True
        scheme, _, sent = request.headers.get(b"authorization", b"").partition(b" ")
        # All of them are compared, each in constant time: how long it takes tells nothing.
        matches = [hmac.compare_digest(sent.strip(), key) for key in self._keys]
        return scheme.lower() == b"bearer" and any(matches)

    def _chat(self, request: HttpRequest, reply: HttpReply) -> None:
        timeline = Timeline()
        call = read_chat(request.body)
        with self._traced(request, call.model, timeline) as trace:
            self._begin_chat(reply, call, _call_id(request, call), timeline, trace)

    def _begin_chat(
        self, reply: HttpReply, call: ChatCall, call_id: str, timeline: Timeline, trace: Trace | None
    ) -> None:
        model, adapter = self._models.find(call.model)
        prompt = render_prompt(model, call)
        replies = ChatReplies(f"chatcmpl-{call_id}", call.model, int(time.time()), _reply_options(call))
        form = HERMES if describes_tools(model, call) else model.config.parameters.get("tool_call_parser", "")
        parser = OutputForm(model.engine.info.chat_template, form, call, prompt)
        call = parser.adjusted(call)
        exchange = self._exchange(reply, ChatForm(replies, _echoed(call)), call, 1, parser, trace)
        span = None if trace is None else trace.began(model.version)
        exchange.begin([self._start(model, adapter, call, prompt, timeline, span, special=call.add_special_tokens)])

    def _completion(self, request: HttpRequest, reply: HttpReply) -> None:
        timeline = Timeline()
        call = read_completion(request.body)
        with self._traced(request, call.model, timeline) as trace:
            self._begin_completion(reply, call, _call_id(request, call), timeline, trace)

    def _begin_completion(
        self, reply: HttpReply, call: CompletionCall, call_id: str, timeline: Timeline, trace: Trace | None
    ) -> None:
        model, adapter = self._models.find(call.model)
        replies = CompletionReplies(f"cmpl-{call_id}", call.model, int(time.time()), _reply_options(call))
        form = CompletionForm(replies, echo=call.echo)
        exchange = self._exchange(reply, form, call, len(call.prompts), PlainOutput, trace)
        span = None if trace is None else trace.began(model.version)
        exchange.begin(
            [
                self._start(model, adapter, call, prompt, timeline, span, special=call.add_special_tokens)
                for prompt in call.prompts
            ]
        )

    @contextmanager
    def _traced(self, request: HttpRequest, model: str, timeline: Timeline) -> Iterator[Trace | None]:
        """Begin the trace of a call, if somebody wants to know of it, and note there that it is refused."""
        trace = begin_trace(self._observer, request, model, timeline) if self._observer.on else None
        try:
            yield trace
        except ConchError as error:
            if trace is not None:
                trace.refused(error)
            raise

    def _exchange(
        self,
        reply: HttpReply,
        form: ChatForm | CompletionForm,
        call: Call,
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
        call: Call,
        prompt: str | Sequence[int],
        timeline: Timeline,
        span: Span | None,
        *,
        special: bool,
    ) -> Callable[[Listen], Generation]:
        """Return what has the model generate for one prompt."""
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
        )
        return partial(model.generate, request)


def wrong_method(request: HttpRequest) -> HttpRefusal:
    """Return the refusal of a method that the path does not have."""
    return refusal_of(InvalidRequest(f"Not allowed to {request.method.decode()} on {request.path}"), 405)


def _call_id(request: HttpRequest, call: Call) -> str:
    """Return the part of an answer's id that the client may choose, by a header or a field, as with vLLM."""
    sent = request.headers.get(b"x-request-id", b"")
    return sent.decode("latin-1") or call.request_id or uuid4().hex


def _reply_options(call: Call) -> ReplyOptions:
    return ReplyOptions(
        include_usage=call.include_usage,
        continuous_usage=call.continuous_usage,
        token_ids=call.token_ids,
        tokens_as_ids=call.tokens_as_ids,
        prompt_logprobs=call.params.prompt_logprobs is not None,
    )


def _echoed(call: ChatCall) -> str:
    """Return what an answer begins with: the assistant's message that it belongs to, if that is to be echoed."""
    last = call.messages[-1]
    return str(last["content"] or "") if call.echo and last["role"] == "assistant" else ""
