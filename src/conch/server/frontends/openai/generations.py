"""Calls that generate, of every API: admission, the chat template, the model.

What differs between the APIs is a `Dialect`: how a body is read, and the forms of answers and errors.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar
from uuid import uuid4

from conch.base.errors import Cancelled, ConchError, InvalidRequest
from conch.domain.generation import GenerationRequest
from conch.domain.llm.images import EncodedImage
from conch.domain.llm.output import OutputParser, PlainOutput
from conch.domain.llm.tool_calls import HERMES
from conch.domain.request import Span, Timeline, TokenMeter
from conch.protocols.generation_form import GenerationForm
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.choices import ChatForm, CompletionForm, ReplyOptions
from conch.protocols.openai.large import join_prompts
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
from conch.server.frontends.openai.calls import CallDialect, CallReader, continue_call
from conch.server.frontends.openai.chat import ChatPrompt, OutputForm
from conch.server.frontends.openai.exchange import Exchange
from conch.server.frontends.openai.models import OpenAiModels
from conch.server.frontends.parts import Parts
from conch.server.observability.tracing.request_trace import Trace

_Call = TypeVar("_Call", bound=ChatCall | CompletionCall)
# Its value is in every chunk of a stream.
_REQUEST_ID = b"x-request-id"


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    """A call that generates, between its admission and the start of its generations.

    `id` is the part of the answer's id that the client may choose.
    """

    reply: HttpReply
    id: str
    model: GenerativeModel
    adapter: str
    timeline: Timeline
    trace: Trace | None
    meter: TokenMeter | None
    client: str

    def request(
        self,
        call: ChatCall | CompletionCall,
        span: Span | None,
        images: Sequence[EncodedImage],
        prompt: str | Sequence[int],
    ) -> GenerationRequest:
        """Return the request to the engine for one prompt."""
        # The usage of a generation that ends with the first call is not the engine's.
        ends_with_call = isinstance(call, ChatCall) and call.tools and not call.parallel_tool_calls
        return GenerationRequest(
            id=uuid4().hex,
            model_name=self.model.config.name,
            prompt=prompt,
            params=call.params,
            version=self.model.version,
            adapter=self.adapter,
            priority=call.priority,
            add_special_tokens=call.add_special_tokens,
            return_prompt=call.return_prompt or ("count" if ends_with_call else ""),
            prompt_only=call.prompt_only,
            images=images,
            timeline=self.timeline.part(),
            span=span,
            meter=self.meter,
            client=self.client,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect(CallDialect[_Call], Generic[_Call]):
    """How an API of generations reads calls, and writes answers and errors.

    A `ChatCall` is rendered by the model's chat template, a `CompletionCall` has its prompts. `form` makes the form of
    one answer, whose text begins with the last argument. A stream has calls of tools in pieces unless they are
    `whole_calls`.
    """

    form: Callable[[_Call, AdmittedCall, str], GenerationForm]
    whole_calls: bool = False


class Generations:
    """Begins the calls of all dialects."""

    def __init__(self, parts: Parts, models: OpenAiModels) -> None:
        self._parts = parts
        self._models = models

    def endpoint(self, dialect: Dialect[_Call]) -> CallReader[_Call]:
        """Return the handler of a path."""
        return CallReader(self._parts, dialect, partial(self.begin, dialect))

    def begin(
        self, dialect: Dialect[_Call], request: HttpRequest, reply: HttpReply, call: _Call, timeline: Timeline
    ) -> None:
        """Find the model, render its chat template for a chat, and generate. Raises ConchError."""
        observer = self._parts.observer
        trace = observer.begin_http(request, call.model, timeline) if observer.on else None
        with _refusals(trace):
            admitted = self._admit(request, reply, call, timeline, trace)
            if isinstance(call, CompletionCall):
                _generate(dialect, admitted, call, call.prompts, dialect.form(call, admitted, ""), PlainOutput)
                return
            rendered = partial(_rendered, dialect, admitted, call)
            reply.on_disconnect = self._parts.prompts.render(admitted.model, call, rendered, admitted.client).cancel

    def _admit(
        self, request: HttpRequest, reply: HttpReply, call: GenerationCall, timeline: Timeline, trace: Trace | None
    ) -> AdmittedCall:
        """Find the model and count the call towards the limits of model and tenant. Raises ConchError."""
        call_id = _call_id(request, call)
        if _REQUEST_ID not in request.headers:
            reply.add_id("".join(call_id.split())[:MAX_REQUEST_ID_CHARACTERS])
        model, adapter = self._models.find(call.model)
        inference, tenants = self._parts.inference, self._parts.tenants
        meter = None
        if inference.limiter is not None:
            meter = inference.admit(model, timeline, tenants.of_http(request))
        client = tenants.client_of_http(request, reply.peer)
        return AdmittedCall(reply, call_id, model, adapter, timeline, trace, meter, client)


def _rendered(dialect: Dialect[_Call], admitted: AdmittedCall, call: _Call, prompt: ChatPrompt | ConchError) -> None:
    trace, reply = admitted.trace, admitted.reply
    if trace is not None and isinstance(prompt, ConchError):
        trace.refused(prompt)
    elif trace is not None and not reply.open:
        trace.refused(Cancelled("request was cancelled by the client"))
    continue_call(reply, partial(_generate_chat, dialect, admitted, call), prompt, refusal=dialect.refusal)


def _generate_chat(dialect: Dialect[_Call], admitted: AdmittedCall, call: _Call, prompt: ChatPrompt) -> None:
    assert isinstance(call, ChatCall)
    model = admitted.model
    with _refusals(admitted.trace):
        check_repetition(call.params.n, len(prompt.echoed) + (len(prompt.text) if call.repeats_tokens else 0))
        calls = HERMES if prompt.describes_tools else model.config.parameters.get("tool_call_parser", "")
        whole = dialect.whole_calls or not call.stream
        parser = OutputForm(model.engine.info.chat_template, calls, call, prompt.text, whole=whole)
        form = dialect.form(call, admitted, prompt.echoed)
        _generate(dialect, admitted, parser.adjusted(call), [prompt.text], form, parser, prompt.images)


def _generate(
    dialect: Dialect[_Call],
    admitted: AdmittedCall,
    call: ChatCall | CompletionCall,
    prompts: Sequence[str | Sequence[int]],
    form: GenerationForm,
    parser: Callable[[], OutputParser],
    images: Sequence[EncodedImage] = (),
) -> None:
    """Start the generation of each prompt of a call. Raises ConchError."""
    exchange = Exchange(
        admitted.reply,
        form,
        parser,
        prompts=len(prompts),
        n=call.params.n,
        stream=call.stream,
        refusal=dialect.refusal,
        trace=admitted.trace,
    )
    span = None if admitted.trace is None else admitted.trace.began(admitted.model.version)
    requests = [admitted.request(call, span, images, prompt) for prompt in prompts]
    exchange.begin([partial(admitted.model.generate, request) for request in requests])


def _call_id(request: HttpRequest, call: GenerationCall) -> str:
    """Return the part of an answer's id that the client may choose, by a header or a field, as with vLLM."""
    sent = request.headers.get(_REQUEST_ID, b"")
    if len(sent) > MAX_REQUEST_ID_CHARACTERS:
        text = f"the header 'X-Request-Id' may have {MAX_REQUEST_ID_CHARACTERS} characters at most, got {len(sent)}"
        raise InvalidRequest(text)
    return sent.decode("latin-1") or call.request_id or uuid4().hex


@contextmanager
def _refusals(trace: Trace | None) -> Iterator[None]:
    """Record in the trace of a call, if there is one, that it is refused."""
    try:
        yield
    except ConchError as error:
        if trace is not None:
            trace.refused(error)
        raise


def _joined_chat(outcome: Outcome) -> ChatCall:
    rest, messages = outcome.parts
    return read_chat(rest, messages, outcome.meta["ignored"])


def _joined_completion(outcome: Outcome) -> CompletionCall:
    rest, *prompts = outcome.parts
    return read_completion(rest, join_prompts(outcome.meta, prompts))


def _chat_form(call: ChatCall, admitted: AdmittedCall, echoed: str) -> GenerationForm:
    return ChatForm(f"chatcmpl-{admitted.id}", call.model, int(time.time()), _reply_options(call), echoed)


def _completion_form(call: CompletionCall, admitted: AdmittedCall, _echoed: str) -> GenerationForm:
    return CompletionForm(f"cmpl-{admitted.id}", call.model, int(time.time()), _reply_options(call), call.echo)


def _reply_options(call: GenerationCall) -> ReplyOptions:
    return ReplyOptions(
        include_usage=call.include_usage,
        continuous_usage=call.continuous_usage,
        token_ids=call.token_ids,
        tokens_as_ids=call.tokens_as_ids,
        prompt_logprobs=call.params.prompt_logprobs is not None,
    )


CHAT = Dialect(job="chat", read=read_chat, join=_joined_chat, form=_chat_form)
COMPLETION = Dialect(job="completion", read=read_completion, join=_joined_completion, form=_completion_form)
