"""Encode requests of the OpenAI API, with the fields that the server accepts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from conch.measure.bench.generator import ResponseKind
from conch.measure.bench.input_settings import DEFAULT_OUTPUT_TOKENS, InputError, InputSettings, OpenAiRoute
from conch.measure.bench.inputs.tensor_request import http_head
from conch.measure.bench.targets.http_probe import HttpAnswer, HttpProbe
from conch.measure.bench.targets.target import BenchTarget, ModelKind

Message = Mapping[str, Any]

_PATHS = {
    OpenAiRoute.CHAT: "/chat/completions",
    OpenAiRoute.COMPLETIONS: "/completions",
    OpenAiRoute.EMBEDDINGS: "/embeddings",
}
_TRIAL_TIMEOUT_S = 120.0  # the first request to a cold model
_REFUSED = (400, 404, 405, 422, 501)
_MAX_TOKENS, _MIN_TOKENS, _IGNORE_EOS, _USAGE = "max_tokens", "min_tokens", "ignore_eos", "stream_options"
_NEWER_MAX_TOKENS = "max_completion_tokens"
# What is left out for servers that refuse it, in the order of trying, with its consequence.
_OPTIONAL = {
    _IGNORE_EOS: "answers may be shorter than --output-tokens",
    _MIN_TOKENS: "answers may be shorter than --output-tokens",
    _USAGE: "tokens of streamed answers are not counted by the server",
}


@dataclass(frozen=True, slots=True)
class AcceptedForm:
    """The route of a server that was tried, and the fields that it accepts."""

    route: OpenAiRoute
    fields: frozenset[str]
    notes: tuple[str, ...] = ()


class OpenAiEncoder:
    """Encodes requests to one model."""

    def __init__(self, target: BenchTarget, settings: InputSettings, form: AcceptedForm) -> None:
        self.form = form
        self.streams = settings.streaming and form.route is not OpenAiRoute.EMBEDDINGS
        self.response = ResponseKind.OPENAI_STREAM if self.streams else ResponseKind.OPENAI_UNARY
        self.path = target.base_path + _PATHS[form.route]
        self._head = http_head(self.path, "application/json")
        self._model = target.model.name
        self._exact = settings.output_tokens is not None

    def encode(self, prompt: str | Sequence[Message], output_tokens: int | None) -> tuple[bytes, bytes]:
        """Return head and body of a request. `output_tokens` of None are the default maximum."""
        return self._head, orjson.dumps(self.document(prompt, output_tokens, streams=self.streams))

    def document(
        self, prompt: str | Sequence[Message], output_tokens: int | None, *, streams: bool, exact: bool | None = None
    ) -> dict[str, Any]:
        """Return the body of a request. `exact` asks for `output_tokens`, not fewer."""
        document: dict[str, Any] = {"model": self._model}
        if self.form.route is OpenAiRoute.EMBEDDINGS:
            document["input"] = prompt
            return document
        if self.form.route is OpenAiRoute.CHAT:
            document["messages"] = [user_message(prompt)] if isinstance(prompt, str) else prompt
        else:
            document["prompt"] = prompt
        fields = self.form.fields
        limit = DEFAULT_OUTPUT_TOKENS if output_tokens is None else output_tokens
        document[_MAX_TOKENS if _MAX_TOKENS in fields else _NEWER_MAX_TOKENS] = limit
        if self._exact if exact is None else exact:
            document.update({_IGNORE_EOS: True} if _IGNORE_EOS in fields else {})
            document.update({_MIN_TOKENS: limit} if _MIN_TOKENS in fields else {})
        if streams:
            document["stream"] = True
            document.update({_USAGE: {"include_usage": True}} if _USAGE in fields else {})
        return document


def user_message(text: str) -> dict[str, str]:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def try_server(target: BenchTarget, settings: InputSettings) -> AcceptedForm:
    """Find the route and the fields that a server accepts, by requests for one token.

    Chat is preferred to completions, and completions to embeddings. Raises InputError with the server's message.
    """
    if settings.route is not None:
        routes = [settings.route]
    elif target.model.kind is ModelKind.EMBEDDINGS:
        routes = [OpenAiRoute.EMBEDDINGS]
    else:
        routes = list(OpenAiRoute)
    probe = HttpProbe(target.endpoint, _TRIAL_TIMEOUT_S)
    refusals = []
    for route in routes:
        accepted = _try_route(probe, target, settings, route)
        if isinstance(accepted, AcceptedForm):
            return accepted
        refusals.append(accepted)
    first = refusals[0]
    raise InputError(f"the server refuses a request to {first.path}: {first.status} {first.error_message()}")


def _try_route(
    probe: HttpProbe, target: BenchTarget, settings: InputSettings, route: OpenAiRoute
) -> AcceptedForm | HttpAnswer:
    """Leave out what the server refuses, one field at a time; return its last refusal if that does not help."""
    fields = {_MAX_TOKENS, *_OPTIONAL}
    left_out: list[str] = []
    while True:
        form = AcceptedForm(route, frozenset(fields), _consequences(left_out, settings, route))
        encoder = OpenAiEncoder(target, settings, form)
        document = encoder.document("Hello", 1, streams=encoder.streams)
        answer = probe.post(encoder.path, document)
        if answer.status == 200:
            return form
        if answer.status not in _REFUSED:
            raise InputError(
                f"a first request to {encoder.path} failed: {answer.status} {answer.reason}: {answer.error_message()}"
            )
        refused = _refused_field(answer, document, fields)
        if refused is None or answer.status in (404, 405):
            return answer
        fields.discard(refused)
        left_out.append(refused)


def _refused_field(answer: HttpAnswer, document: Mapping[str, Any], fields: set[str]) -> str | None:
    """Return the field that a refusal names, else the next one that can be left out."""
    sent = [name for name in (*_OPTIONAL, _MAX_TOKENS) if name in document and name in fields]
    message = answer.error_message()
    named = [name for name in sent if name in message]
    candidates = named or [name for name in sent if name != _MAX_TOKENS]
    return candidates[0] if candidates else None


def _consequences(left_out: Sequence[str], settings: InputSettings, route: OpenAiRoute) -> tuple[str, ...]:
    if route is OpenAiRoute.EMBEDDINGS:
        return ()
    return tuple(
        f"the server refuses {name}: {_OPTIONAL[name]}"
        for name in left_out
        if name in _OPTIONAL and (settings.output_tokens is not None or name == _USAGE)
    )
