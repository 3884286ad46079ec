"""Make the requests to language and embedding models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from conch.domain.tensor import BYTES, NUMPY_DTYPES, Tensor, pack_bytes
from conch.measure.bench.generator import FixedRequests, PreparedRequest, ResponseKind
from conch.measure.bench.input_settings import (
    DEFAULT_OUTPUT_TOKENS,
    Amount,
    InputError,
    InputSettings,
    OpenAiRoute,
    PreparedInputs,
)
from conch.measure.bench.inputs.conversations import Conversation, ConversationSource
from conch.measure.bench.inputs.openai_request import OpenAiEncoder, try_server
from conch.measure.bench.inputs.prompt_files import FilePrompt
from conch.measure.bench.inputs.prompts import DEFAULT_WORDS, PromptWriter, UniqueWords
from conch.measure.bench.inputs.sequences import CancellationPattern
from conch.measure.bench.inputs.tensor_request import TensorRequestEncoder, tensor_encoder
from conch.measure.bench.inputs.tensors import to_wire
from conch.measure.bench.inputs.vocabulary import (
    TokenCounter,
    Vocabulary,
    assumed_vocabulary,
    measured_vocabulary,
    openai_counter,
)
from conch.measure.bench.targets.target import BenchTarget, Protocol, TargetError, TargetModel, TensorMetadata

PROMPT_INPUT = "text_input"
_SAMPLING = "sampling_parameters"
# TensorRT-LLM's inputs for the number of tokens, at most and at least.
_MAX_INPUTS, _MIN_INPUTS = ("max_tokens", "request_output_len"), ("min_tokens", "min_length")
# As many conversations as users need not send the same ones at the same time.
_CONVERSATIONS = 64
# Prompts that are cut one by one cost requests.
_MAX_CUT = 64
# A run that sends more of them is rare.
_FEW_PROMPTS = 1_000_000


class TextTensorEncoder:
    """Encodes a prompt as `text_input`, and the rest as inputs that the model has, or else as parameters."""

    def __init__(self, target: BenchTarget, settings: InputSettings) -> None:
        self._encoder: TensorRequestEncoder = tensor_encoder(target, settings)
        self._model: TargetModel = target.model
        self._forms = {form.name: form for form in target.model.inputs}
        self._settings = settings
        self.response: ResponseKind = self._encoder.response
        self._streams = self.response in (ResponseKind.GENERATE_STREAM, ResponseKind.GRPC_STREAM)
        self._streams = self._streams and settings.streaming

    def encode(self, prompt: str, output_tokens: int | None) -> tuple[bytes, bytes]:
        """Return head and body of a request. `output_tokens` of None are the default maximum. Raises InputError."""
        limit = DEFAULT_OUTPUT_TOKENS if output_tokens is None else output_tokens
        exact = self._settings.output_tokens is not None
        values: dict[str, Any] = {PROMPT_INPUT: prompt, "stream": self._streams, "exclude_input_in_output": True}
        sampling = {"max_tokens": limit} | ({"min_tokens": limit, "ignore_eos": True} if exact else {})
        parameters: dict[str, Any] = {}
        if _SAMPLING in self._forms:
            values[_SAMPLING] = orjson.dumps(sampling).decode()
        else:
            values |= dict.fromkeys(_MAX_INPUTS, limit) | (dict.fromkeys(_MIN_INPUTS, limit) if exact else {})
            if not any(name in self._forms for name in _MAX_INPUTS):
                parameters.update(sampling)
        return self._encoder.encode(self._tensors(values), parameters)

    def _tensors(self, values: Mapping[str, Any]) -> list[Tensor]:
        missing = [form.name for form in self._forms.values() if not form.optional and form.name not in values]
        if missing:
            names = ", ".join(missing)
            raise InputError(f"model '{self._model.name}' also needs the inputs {names}; give them with --input-data")
        return [self._tensor(form, values[form.name]) for form in self._forms.values() if form.name in values]

    def _tensor(self, form: TensorMetadata, value: str | bool | int) -> Tensor:
        shape = (1,) * len(form.shape)
        if form.datatype == BYTES:
            return Tensor(form.name, BYTES, shape, pack_bytes([str(value)]))
        return Tensor(form.name, form.datatype, shape, to_wire(np.array([value], _dtype(form)), form.datatype))


def _dtype(form: TensorMetadata) -> Any:
    return NUMPY_DTYPES.get(form.datatype, np.float32)


@dataclass(frozen=True, slots=True)
class RequestSize:
    """Tokens of one request of a trace. `hash_ids` name the blocks of its prompt; equal ids share their text."""

    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


class LanguageInputs:
    """Makes requests with prompts for one target."""

    def __init__(self, target: BenchTarget, settings: InputSettings) -> None:
        """Send a few requests to find out which fields the server accepts. Raises InputError, TargetError."""
        self._settings = settings
        self._target = target
        self.notes: list[str] = []
        self._counter: TokenCounter | None = None
        self._openai: OpenAiEncoder | None = None
        if target.protocol is Protocol.OPENAI:
            form = try_server(target, settings)
            self.notes += form.notes
            self._openai = OpenAiEncoder(target, settings, form)
        self._encoder: OpenAiEncoder | TextTensorEncoder = self._openai or TextTensorEncoder(target, settings)

    def generated(self) -> PreparedInputs:
        """Return requests with prompts of random words."""
        settings = self._settings
        if settings.turns is not None:
            return self._sessions(settings.turns)
        sizes = self._sizes()
        writer = self._writer(exact=settings.prompt_tokens is not None)
        prefixes = self._prefixes(writer)
        count = self._distinct(writer)
        requests = []
        for index in range(count):
            tokens = writer.amount(sizes)
            prompt = writer.prompt(tokens, prefixes[index % len(prefixes)])
            known = tokens if writer.exact else -1
            requests.append(self._request(index, prompt, self._output_tokens(writer), known, writer))
        self._note_distinct(writer)
        never = all(request.next_body is not None for request in requests)
        what = self._description("prompts that never repeat" if never else f"{count} prompts", writer)
        return PreparedInputs(FixedRequests(requests), what, tuple(self.notes))

    def of_prompts(self, prompts: Sequence[FilePrompt]) -> PreparedInputs:
        """Return requests with the prompts of a file; conversations if one of them has turns. Raises InputError."""
        what = f"{len(prompts)} prompts of {self._settings.input_data}"
        if any(prompt.turns for prompt in prompts):
            return self._conversations([self._conversation(prompt) for prompt in prompts], what)
        requests = []
        for index, prompt in enumerate(prompts):
            content = prompt.content
            output_tokens = self._wanted_output() if prompt.output_tokens is None else prompt.output_tokens
            if self._openai is not None and self._chat:
                head, body = self._openai.encode(content, output_tokens)
            else:
                text = content if isinstance(content, str) else messages_text(content)
                head, body = self._encoder.encode(text, output_tokens)
            requests.append(PreparedRequest(index, head, body, self._encoder.response))
        return PreparedInputs(FixedRequests(requests), what, tuple(self.notes))

    def _conversation(self, prompt: FilePrompt) -> Conversation:
        first = prompt.content if isinstance(prompt.content, str) else messages_text(prompt.content)
        turns = (first, *prompt.turns)
        output_tokens = self._wanted_output() if prompt.output_tokens is None else prompt.output_tokens
        return Conversation(turns, [output_tokens] * len(turns))

    def _conversations(
        self, conversations: Sequence[Conversation], what: str, unique: UniqueWords | None = None
    ) -> PreparedInputs:
        if self._openai is None or self._openai.form.route is OpenAiRoute.EMBEDDINGS:
            raise InputError("conversations need chat or completions of the OpenAI API (--protocol openai)")
        pattern = CancellationPattern(self._settings.cancel)
        source = ConversationSource(conversations, self._openai, pattern, unique)
        return PreparedInputs(source, what, tuple(self.notes))

    def of_sizes(self, sizes: Sequence[RequestSize], block_tokens: int) -> PreparedInputs:
        """Return one request for each size, in their order. `index` is the place in `sizes`."""
        writer = self._writer(exact=True)
        requests = []
        for index, size in enumerate(sizes):
            if size.hash_ids:
                prompt = writer.blocks(size.hash_ids, block_tokens, size.input_tokens)
            else:
                tokens = max(size.input_tokens, writer.vocabulary.overhead + 1)
                prompt = writer.prompt(tokens, cut=len(sizes) <= _MAX_CUT)
            requests.append(self._request(index, prompt, max(1, size.output_tokens), -1, writer))
        self._note_distinct(writer)
        what = self._description(f"{len(sizes)} requests with the sizes of a trace", writer)
        return PreparedInputs(FixedRequests(requests), what, tuple(self.notes))

    @property
    def _chat(self) -> bool:
        return self._openai is not None and self._openai.form.route is OpenAiRoute.CHAT

    def _request(
        self, index: int, prompt: str, output_tokens: int | None, tokens: int, writer: PromptWriter
    ) -> PreparedRequest:
        head, body = self._encoder.encode(prompt, output_tokens)
        next_body = None if writer.unique is None else writer.unique.next_body(body)
        if next_body is not None:
            body = next_body()
        return PreparedRequest(index, head, body, self._encoder.response, input_tokens=tokens, next_body=next_body)

    def _note_distinct(self, writer: PromptWriter) -> None:
        distinct = writer.fewest_distinct
        if distinct is not None and distinct < _FEW_PROMPTS:
            self.notes.append(
                f"prompts this short repeat: there are {distinct:,} different ones, "
                "so that a prefix cache may answer them"
            )

    def _sizes(self) -> Amount:
        asked = self._settings.prompt_tokens
        return asked if asked is not None else Amount(DEFAULT_WORDS + self._settings.prefix_tokens)

    def _wanted_output(self) -> int | None:
        return None if self._settings.output_tokens is None else self._settings.output_tokens.mean

    def _output_tokens(self, writer: PromptWriter) -> int | None:
        asked = self._settings.output_tokens
        return None if asked is None else writer.amount(asked)

    def _writer(self, *, exact: bool) -> PromptWriter:
        """Return the writer of prompts; find out how words become tokens if their number matters."""
        vocabulary = assumed_vocabulary()
        if exact:
            if self._openai is not None:
                self._counter = openai_counter(self._target, self._openai, self._settings.tokenizer)
            vocabulary = self._measured()
        unique = self._settings.prompts_never_repeat
        writer = PromptWriter(vocabulary, self._settings.seed, self._counter, unique=unique)
        if exact and not writer.exact:
            self.notes.append("the numbers of prompt tokens are not exact: no tokenizer, a word is taken as a token")
        return writer

    def _measured(self) -> Vocabulary:
        if self._counter is None:
            return assumed_vocabulary()
        try:
            return measured_vocabulary(self._counter, self._target.model.context_length)
        except (InputError, TargetError) as error:
            raise InputError(f"the tokens of prompts cannot be counted: {error.message}") from None

    def _distinct(self, writer: PromptWriter) -> int:
        asked = self._settings.distinct_requests
        return asked if writer.vocabulary.exact else min(asked, _MAX_CUT)

    def _prefixes(self, writer: PromptWriter) -> list[list[str]]:
        tokens = self._settings.prefix_tokens
        return [writer.prefix(number, tokens) for number in range(self._settings.prefixes)] if tokens else [[]]

    def _sessions(self, turns: Amount) -> PreparedInputs:
        settings = self._settings
        writer = self._writer(exact=settings.prompt_tokens is not None)
        prefixes = self._prefixes(writer)
        conversations = []
        for number in range(_CONVERSATIONS if writer.vocabulary.exact else settings.distinct_requests):
            prefix = prefixes[number % len(prefixes)]
            count = writer.amount(turns)
            prompts = [
                writer.prompt(writer.amount(self._sizes()), prefix if turn == 0 else (), first=turn == 0)
                for turn in range(count)
            ]
            conversations.append(Conversation(prompts, [self._output_tokens(writer) for _ in range(count)]))
        self._note_distinct(writer)
        self.notes.append("the first turn has the prompt tokens that were asked for; later ones add as many words")
        what = self._description(f"conversations of {turns} turns", writer)
        return self._conversations(conversations, what, writer.unique)

    def _description(self, what: str, writer: PromptWriter) -> str:
        settings = self._settings
        parts = [what]
        if settings.prompt_tokens is not None and writer.exact and self._counter is not None:
            parts.append(f"of exactly {settings.prompt_tokens} tokens by {self._counter.source}")
        elif settings.prompt_tokens is not None:
            parts.append(f"of about {settings.prompt_tokens} tokens")
        if settings.prefix_tokens:
            parts.append(f"the first {settings.prefix_tokens} of {settings.prefixes} shared prefixes")
        if settings.output_tokens is not None:
            parts.append(f"answers of {settings.output_tokens} tokens")
        return ", ".join(parts)


def messages_text(messages: Sequence[dict[str, object]]) -> str:
    """Return the contents of messages as one text, for APIs without a chat."""
    return "\n".join(str(message.get("content", "")) for message in messages)
