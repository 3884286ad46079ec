"""The OpenAI API over HTTP: which path means what, and who may call it."""

import hmac
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from uuid import uuid4

from conch.core.generative import GenerativeModel
from conch.core.inference import Inference
from conch.core.lifecycle import ModelControl
from conch.errors import ConchError, InvalidRequest, NotFound, Unsupported
from conch.frontends.http_message import HttpRequest, content_type
from conch.frontends.http_reply import HttpReply
from conch.frontends.http_tasks import ReplyTasks
from conch.frontends.openai_chat_output import OutputForm
from conch.frontends.openai_errors import JSON, send_error
from conch.frontends.openai_exchange import ChatForm, CompletionForm, Exchange
from conch.generation import GenerationRequest
from conch.llm.chat import ChatTemplate
from conch.llm.output import OutputParser, PlainOutput
from conch.protocol import openai_replies
from conch.protocol.openai_replies import ChatReplies, CompletionReplies
from conch.protocol.openai_requests import Call, read_chat, read_completion
from conch.request import Timeline

PREFIX = "/v1/"
_TEXT = content_type(b"text/plain")
_MODELS = "/v1/models"


class OpenAiHttp:
    """Handler of the paths of the OpenAI API.

    With `api_keys`, a client must send one of them as a bearer token. `lora_separator` stands between the name of a
    model and that of one of its LoRA adapters.
    """

    def __init__(
        self,
        inference: Inference,
        control: ModelControl,
        *,
        api_keys: Sequence[str] = (),
        lora_separator: str = "_lora_",
    ) -> None:
        self._inference = inference
        self._control = control
        self._keys = [key.encode() for key in api_keys]
        self._separator = lora_separator
        self._tasks = ReplyTasks()
        self._started = int(time.time())
        self._posts: dict[str, Callable[[HttpRequest, HttpReply], None]] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completion,
        }

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer one request."""
        try:
            if not self._admits(request):
                send_error(reply, InvalidRequest("Incorrect API key provided."), 401, "invalid_api_key")
            else:
                self._route(request, reply)
        except ConchError as error:
            send_error(reply, error)

    def _admits(self, request: HttpRequest) -> bool:
        if not self._keys:
            return True
        scheme, _, sent = request.headers.get(b"authorization", b"").partition(b" ")
        # All of them are compared, each in constant time: how long it takes tells nothing.
        matches = [hmac.compare_digest(sent.strip(), key) for key in self._keys]
        return scheme.lower() == b"bearer" and any(matches)

    def _route(self, request: HttpRequest, reply: HttpReply) -> None:
        path, method = request.path, request.method
        post = self._posts.get(path)
        if post is not None:
            if method == b"POST":
                post(request, reply)
            else:
                send_error(reply, InvalidRequest(f"Not allowed to {method.decode()} on {path}"), 405)
        elif path == _MODELS and method == b"GET":
            reply.send(200, JSON, openai_replies.models([(name, self._started) for name in self._names()]))
        elif path.startswith(_MODELS + "/") and method == b"GET":
            name = path[len(_MODELS) + 1 :]
            self._find(name)
            reply.send(200, JSON, openai_replies.model(name, self._started))
        else:
            send_error(reply, NotFound(f"Invalid URL ({method.decode()} {path})"), 404, "unknown_url")

    def _names(self) -> list[str]:
        """Return the names of the models that generate, and of their adapters."""
        names: list[str] = []
        for model in self._inference.models():
            if isinstance(model, GenerativeModel) and model.ready:
                name = model.config.name
                names += [name, *(f"{name}{self._separator}{adapter}" for adapter in model.engine.info.adapters)]
        return sorted(set(names))

    def _find(self, name: str) -> tuple[GenerativeModel, str]:
        """Return the model that a client has named, and the adapter. Raises NotFound, Unsupported."""
        try:
            model, adapter = self._inference.model(name, None), ""
        except NotFound:
            base, found, adapter = name.partition(self._separator)
            if not found:
                raise NotFound(f"The model `{name}` does not exist.") from None
            try:
                model = self._inference.model(base, None)
            except NotFound:
                raise NotFound(f"The model `{name}` does not exist.") from None
        if not isinstance(model, GenerativeModel):
            raise Unsupported(f"The model `{name}` does not generate text; it is served by /v2/models/{name}/infer.")
        if adapter and adapter not in model.engine.info.adapters:
            raise NotFound(f"The model `{name}` does not exist: `{model.config.name}` has no adapter '{adapter}'.")
        return model, adapter

    def _chat(self, request: HttpRequest, reply: HttpReply) -> None:
        timeline = Timeline()
        call = read_chat(request.body)
        model, adapter = self._find(call.model)
        info = model.engine.info
        if not info.chat_template:
            raise InvalidRequest(f"The model `{call.model}` has no chat template; /v1/completions takes its prompts.")
        template = _template(info.chat_template, tuple(sorted(info.special_tokens.items())))
        prompt = template.render(
            call.messages,
            tools=call.tools if call.tool_choice != "none" else (),
            add_generation_prompt=call.add_generation_prompt,
            arguments=call.template_arguments,
        )
        replies = ChatReplies(f"chatcmpl-{uuid4().hex}", call.model, int(time.time()), include_usage=call.include_usage)
        parser = OutputForm(info.chat_template, model.config.parameters.get("tool_call_parser", ""), call, prompt)
        call = parser.adjusted(call)
        exchange = self._exchange(reply, ChatForm(replies), call, 1, parser)
        start = partial(model.generate, self._generation(model, adapter, call, prompt, timeline, special=False))
        exchange.begin([start])

    def _completion(self, request: HttpRequest, reply: HttpReply) -> None:
        timeline = Timeline()
        call = read_completion(request.body)
        model, adapter = self._find(call.model)
        replies = CompletionReplies(
            f"cmpl-{uuid4().hex}", call.model, int(time.time()), include_usage=call.include_usage
        )
        prefixes = [
            prompt if call.echo and isinstance(prompt, str) else ""
            for prompt in call.prompts
            for _ in range(call.params.n)
        ]
        exchange = self._exchange(reply, CompletionForm(replies, prefixes), call, len(call.prompts), PlainOutput)
        exchange.begin(
            [
                partial(
                    model.generate,
                    self._generation(model, adapter, call, prompt, timeline, special=call.add_special_tokens),
                )
                for prompt in call.prompts
            ]
        )

    def _exchange(
        self,
        reply: HttpReply,
        form: ChatForm | CompletionForm,
        call: Call,
        prompts: int,
        parser: Callable[[], OutputParser],
    ) -> Exchange:
        return Exchange(
            reply, form, parser, prompts=prompts, n=call.params.n, stream=call.stream, include_usage=call.include_usage
        )

    def _generation(
        self,
        model: GenerativeModel,
        adapter: str,
        call: Call,
        prompt: str | Sequence[int],
        timeline: Timeline,
        *,
        special: bool,
    ) -> GenerationRequest:
        return GenerationRequest(
            id=uuid4().hex,
            model_name=model.config.name,
            prompt=prompt,
            params=call.params,
            version=model.version,
            adapter=adapter,
            priority=call.priority,
            add_special_tokens=special,
            timeline=Timeline(timeline.received),
        )


@lru_cache(maxsize=64)
def _template(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(source, dict(special_tokens))
