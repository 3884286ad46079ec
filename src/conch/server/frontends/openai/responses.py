"""The Responses API: `/v1/responses`, and what clients do with responses that are kept."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from uuid import uuid4

import orjson

from conch.base.errors import InvalidRequest, NotFound
from conch.domain.generation import SamplingParams
from conch.domain.request import Timeline
from conch.protocols.generation_form import CountForm, GenerationForm
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.fields import InvalidField
from conch.protocols.openai.pages import page_of, read_query
from conch.protocols.openai.responses.form import ResponseForm
from conch.protocols.openai.responses.items import joined, listed_items, messages_of, with_instructions
from conch.protocols.openai.responses.requests import ResponseCall, join_response, read_response
from conch.server.frontends.offload.pool import Outcome
from conch.server.frontends.openai.calls import CallReader
from conch.server.frontends.openai.errors import JSON
from conch.server.frontends.openai.generations import AdmittedCall, Dialect, Generations
from conch.server.frontends.openai.response_store import ResponseStore, StoredResponse, owner_of
from conch.server.frontends.parts import Parts

_REFUSED = {
    "stream": "a response that was created is returned whole; stream it when it is created",
    "starting_after": "it is for streams",
    "include": "a response has what 'include' asked for when it was created",
}


class ResponsesApi:
    """Answers the paths of the API."""

    def __init__(self, parts: Parts, generations: Generations) -> None:
        self._owner = partial(owner_of, parts.keys, parts.tenants)
        self._store = ResponseStore(parts.options.responses_store)
        self._generations = generations
        self.create = CallReader(parts, _UNKEPT, self._begin)
        self.count = CallReader(parts, _COUNTS, self._begin_count)

    def _begin(self, request: HttpRequest, reply: HttpReply, call: ResponseCall, timeline: Timeline) -> None:
        """Continue the conversation of an earlier response, and generate. Raises ConchError."""
        dialect = _COUNTS if call.prompt_only else _UNKEPT
        conversation = call.messages
        assert isinstance(conversation, bytes | memoryview)
        if call.previous:
            conversation = joined(self._previous(call.previous, self._owner(request)), bytes(conversation))
        if call.store and self._store.limit:
            dialect = _dialect(partial(self._kept_form, self._owner(request), bytes(conversation)))
        if call.previous or call.instructions:
            call = replace(call, messages=with_instructions(bytes(conversation), call.instructions))
        self._generations.begin(dialect, request, reply, call, timeline)

    def _begin_count(self, request: HttpRequest, reply: HttpReply, call: ResponseCall, timeline: Timeline) -> None:
        """Count the tokens that a response would begin with. Raises ConchError."""
        choice = call.tool_choice if call.tool_choice == "none" else "auto"
        params = SamplingParams(max_tokens=1)
        call = replace(call, prompt_only=True, stream=False, store=False, tool_choice=choice, params=params)
        self._begin(request, reply, call, timeline)

    def _kept_form(
        self, owner: str, conversation: bytes, call: ResponseCall, admitted: AdmittedCall, _echoed: str
    ) -> GenerationForm:
        response_id = f"resp_{uuid4().hex}"  # not the client's choice: it cannot be guessed or used twice
        kept = StoredResponse(owner, bytes(call.items), conversation, reply=admitted.reply)
        begun = partial(self._store.add, response_id, kept)
        kept.form = _form(call, admitted, "", response_id, begun, partial(self._finished, response_id, conversation))
        return kept.form

    def _finished(self, response_id: str, conversation: bytes, document: bytes, items: bytes) -> None:
        """Keep an answer that is complete."""
        said = orjson.dumps(messages_of(orjson.loads(items)))
        self._store.end(response_id, document, joined(conversation, said))

    def _previous(self, response_id: str, owner: str) -> bytes:
        if not self._store.limit:
            text = (
                "'previous_response_id' needs a server that keeps responses, with --responses-store; without it, send "
                "the whole conversation as 'input'"
            )
            raise InvalidField("previous_response_id", text)
        try:
            previous = self._store.find(response_id, owner)
        except NotFound:
            text = f"Previous response with id '{response_id[:80]}' not found."
            raise InvalidField("previous_response_id", text) from None
        if previous.form is not None:
            raise InvalidField("previous_response_id", "the previous response is not complete yet")
        return previous.conversation

    def show(self, request: HttpRequest, reply: HttpReply, response_id: str) -> None:
        """Answer with a response. Raises NotFound, and InvalidField for a query that asks for another answer."""
        read_query(request.query, _REFUSED)
        response = self._find(request, response_id)
        reply.send(200, JSON, response.document if response.form is None else response.form.running())

    def delete(self, request: HttpRequest, reply: HttpReply, response_id: str) -> None:
        """Remove a response. Raises NotFound."""
        self._find(request, response_id)
        self._store.remove(response_id)
        reply.send(200, JSON, orjson.dumps({"id": response_id, "object": "response", "deleted": True}))

    def input_items(self, request: HttpRequest, reply: HttpReply, response_id: str) -> None:
        """Answer with the input of a response, the last item first. Raises NotFound, InvalidField."""
        items = listed_items(self._find(request, response_id).items, response_id)
        reply.send(200, JSON, page_of(items, request.query))

    def cancel(self, request: HttpRequest, reply: HttpReply, response_id: str) -> None:
        """End a response that is still generated. Raises NotFound, InvalidRequest."""
        response = self._find(request, response_id)
        if response.form is None or response.reply is None:
            raise InvalidRequest(f"The response '{response_id}' cannot be cancelled: it is complete.")
        document = response.form.cancelled()
        abort = response.reply.on_disconnect
        self._store.end(response_id, document, response.conversation)
        if abort is not None:
            abort()
        reply.send(200, JSON, document)

    def _find(self, request: HttpRequest, response_id: str) -> StoredResponse:
        return self._store.find(response_id, self._owner(request))


def _form(
    call: ResponseCall,
    admitted: AdmittedCall,
    _echoed: str,
    response_id: str = "",
    begun: Callable[[], None] | None = None,
    finished: Callable[[bytes, bytes], None] | None = None,
) -> ResponseForm:
    response_id = response_id or f"resp_{uuid4().hex}"
    admitted.reply.add_id(response_id)
    return ResponseForm(
        response_id,
        call.model,
        call.repeated,
        call.by_name,
        summarizes=call.summarizes,
        encrypts=call.encrypts,
        logprobs=call.params.logprobs is not None,
        store=finished is not None,
        begun=begun,
        finished=finished,
    )


def _count_form(_call: ResponseCall, _admitted: AdmittedCall, _echoed: str) -> GenerationForm:
    return CountForm({"object": "response.input_tokens"})


def _dialect(form: Callable[[ResponseCall, AdmittedCall, str], GenerationForm]) -> Dialect[ResponseCall]:
    return Dialect(job="response", read=read_response, join=_joined, form=form)


def _joined(outcome: Outcome) -> ResponseCall:
    return join_response(*outcome.parts)


_UNKEPT, _COUNTS = _dialect(_form), _dialect(_count_form)
