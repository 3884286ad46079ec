"""`POST /tokenize` and `/detokenize`, vLLM's: between texts, or conversations, and the token ids of a model.

A request with `prompt_only` runs the engine's own tokenizer. Load generators measure their prompts with these paths.
"""

from collections.abc import Callable, Sequence
from functools import partial
from uuid import uuid4

from conch.base.errors import Cancelled, ConchError
from conch.domain.generation import Delta, GenerationRequest, PromptTokens, SamplingParams, Usage
from conch.domain.llm.images import EncodedImage
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.tokens import TokenizeCall, detokenized, read_detokenize, read_tokenize, tokenized
from conch.server.core.generative_model import GenerativeModel
from conch.server.frontends.openai.calls import continue_call
from conch.server.frontends.openai.chat import ChatPrompt
from conch.server.frontends.openai.errors import JSON, send_error
from conch.server.frontends.openai.models import OpenAiModels
from conch.server.frontends.parts import Parts


class TokensEndpoint:
    """Answers both paths."""

    def __init__(self, parts: Parts, models: OpenAiModels) -> None:
        self._models = models
        self._prompts = parts.prompts
        self._tenants = parts.tenants
        self._ignored_fields = parts.ignored_fields

    def tokenize(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the token ids of a text or a conversation. Raises ConchError."""
        call = read_tokenize(request.body)
        self._ignored_fields.report(request.path, reply, call)
        model, _ = self._find(call.model)
        context = model.engine.info.context_length

        def answer(tokens: PromptTokens) -> bytes:
            return tokenized(tokens, context, strings=call.token_strings)

        if call.chat is None:
            self._tokenize(model, call.prompt, reply, answer, call)
            return

        def rendered(prompt: ChatPrompt) -> None:
            self._tokenize(model, prompt.text, reply, answer, call, prompt.images)

        client = self._tenants.client_of_http(request, reply.peer)
        reply.on_disconnect = self._prompts.render(
            model, call.chat, partial(continue_call, reply, rendered), client
        ).cancel

    def detokenize(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the text of token ids. Raises ConchError."""
        call = read_detokenize(request.body)
        self._ignored_fields.report(request.path, reply, call)
        model, _ = self._find(call.model)
        if not call.token_ids:
            reply.send(200, JSON, detokenized(PromptTokens(())))
        else:
            self._tokenize(model, call.token_ids, reply, detokenized)

    def _find(self, name: str) -> tuple[GenerativeModel, str]:
        return self._models.find(name) if name else self._models.only()

    def _tokenize(
        self,
        model: GenerativeModel,
        prompt: str | Sequence[int],
        reply: HttpReply,
        answer: Callable[[PromptTokens], bytes],
        call: TokenizeCall | None = None,
        images: Sequence[EncodedImage] = (),
    ) -> None:
        """Tokenize by the engine, and send what `answer` makes of the tokens."""
        request = GenerationRequest(
            id=uuid4().hex,
            model_name=model.config.name,
            prompt=prompt,
            params=SamplingParams(max_tokens=1),
            version=model.version,
            add_special_tokens=call is None or call.add_special_tokens,
            return_prompt="text" if call is None or call.token_strings else "ids",
            prompt_only=True,
            images=images,
        )
        generation = model.generate(request, partial(_on_deltas, reply, answer, []))
        reply.on_disconnect = generation.abort


def _on_deltas(
    reply: HttpReply,
    answer: Callable[[PromptTokens], bytes],
    prompts: list[PromptTokens],
    deltas: Sequence[Delta],
    end: Usage | ConchError | None,
) -> None:
    prompts += [delta.prompt for delta in deltas if delta.prompt is not None]
    if isinstance(end, ConchError):
        if not isinstance(end, Cancelled):
            send_error(reply, end)
    elif end is not None:
        reply.send(200, JSON, answer(prompts[0]))
