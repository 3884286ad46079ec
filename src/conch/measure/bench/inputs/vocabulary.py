"""Words of which prompts of an exact number of tokens are composed, and what counts tokens as the server does."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch.base.errors import Unsupported
from conch.domain.llm.text_model import read_tokenizer
from conch.measure.bench.input_settings import InputError, OpenAiRoute
from conch.measure.bench.inputs.openai_request import OpenAiEncoder, user_message
from conch.measure.bench.targets.http_probe import HttpProbe
from conch.measure.bench.targets.target import BenchTarget, TargetError

_TIMEOUT_S = 60.0
_API_PATHS = ("/v1", "/v3")
WORDS = tuple(Path(__file__).with_name("words.txt").read_text(encoding="ascii").split())
# Words are tried together; groups in which one has several tokens are divided.
_GROUP = 45
_MAX_COUNTS = 160
# With fewer words, prompts would be too much alike.
MIN_WORDS = 16
_ENOUGH_WORDS = 120
_EXAMPLE_WORDS = 40


class TokenCounter(ABC):
    """Counts. `source` says by what, for the report."""

    source: str

    @abstractmethod
    def count(self, text: str) -> int:
        """Return the tokens of a request with this prompt, with what the chat template adds. Raises InputError."""


class ServerTokenizer(TokenCounter):
    """`/tokenize` of vLLM and Conch."""

    source = "the server's tokenizer"

    def __init__(self, target: BenchTarget, *, chat: bool) -> None:
        self._probe = HttpProbe(target.endpoint, _TIMEOUT_S)
        root = target.base_path
        for path in _API_PATHS:
            root = root.removesuffix(path)
        self._path = f"{root}/tokenize"
        self._model = target.model.name
        self._chat = chat

    def count(self, text: str) -> int:
        asked = {"messages": [user_message(text)]} if self._chat else {"prompt": text}
        answer = self._probe.post(self._path, {"model": self._model, **asked})
        document = answer.json
        if answer.status != 200 or not isinstance(document, dict) or not isinstance(document.get("count"), int):
            raise InputError(f"{self._path} answers {answer.status}: {answer.error_message()}")
        return int(document["count"])


class UsageCounter(TokenCounter):
    """`usage.prompt_tokens` of real requests for one token."""

    source = "usage.prompt_tokens of real requests"

    def __init__(self, target: BenchTarget, encoder: OpenAiEncoder) -> None:
        self._probe = HttpProbe(target.endpoint, _TIMEOUT_S)
        self._encoder = encoder

    def count(self, text: str) -> int:
        document = self._encoder.document(text, 1, streams=False, exact=False)
        answer = self._probe.post(self._encoder.path, document)
        usage: Any = answer.json.get("usage") if isinstance(answer.json, dict) else None
        if answer.status != 200 or not isinstance(usage, dict) or not usage.get("prompt_tokens"):
            raise InputError(f"{self._encoder.path} answers {answer.status} without usage: {answer.error_message()}")
        return int(usage["prompt_tokens"])


class LocalTokenizer(TokenCounter):
    """A tokenizer.json of the `tokenizers` package; knows no chat template."""

    def __init__(self, path: str) -> None:
        """Raise InputError for a missing package or an invalid file."""
        file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
        try:
            self._tokenizer = read_tokenizer(file)
        except Unsupported as error:
            raise InputError(f"--tokenizer: {error.message}") from None
        self.source = f"{file}, without the chat template"

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text).ids)


def openai_counter(target: BenchTarget, encoder: OpenAiEncoder, tokenizer: str | None) -> TokenCounter | None:
    """Return the best counter that works: a given tokenizer.json, `/tokenize`, `usage`; None if none does.

    `/tokenize` counts only if it agrees with `usage`, where the server reports that.
    """
    if tokenizer is not None:
        return LocalTokenizer(tokenizer)
    usage = UsageCounter(target, encoder)
    counted = _works(usage)
    server = ServerTokenizer(target, chat=encoder.form.route is OpenAiRoute.CHAT)
    by_server = _works(server)
    if by_server is not None and counted in (None, by_server):
        return server
    return None if counted is None else usage


def _works(counter: TokenCounter) -> int | None:
    try:
        return counter.count("one two three")
    except (InputError, TargetError):
        return None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words of which each has `tokens_per_word` tokens, a request has `overhead` more.

    `exact`: every word after another one has one token, and each of `first` has one at the start of a prompt.
    """

    words: tuple[str, ...]
    first: tuple[str, ...]
    overhead: int
    tokens_per_word: float
    exact: bool


def assumed_vocabulary() -> Vocabulary:
    """Return all words, each taken as one token."""
    return Vocabulary(WORDS, WORDS, 0, 1.0, exact=False)


def measured_vocabulary(counter: TokenCounter, context_length: int | None) -> Vocabulary:
    """Return the words that have one token each, or all words and their mean number of tokens if few have.

    Sends up to 160 requests to the counter, about four with the usual tokenizers. Raises InputError.
    """
    first = WORDS[0]
    single = counter.count(first)
    # A first word of several tokens is found by a second one, which differs by its own tokens only.
    overhead = single - 1
    search = _Search(counter, first, single)
    group = _GROUP if context_length is None else max(1, min(_GROUP, context_length // 2 - single))
    words: list[str] = []
    for start in range(1, len(WORDS), group):
        words += search.single_tokens(WORDS[start : start + group])
        if len(words) >= _ENOUGH_WORDS:
            break
    if len(words) >= MIN_WORDS:
        return Vocabulary(tuple(words), (first,), overhead, 1.0, exact=True)
    sample = WORDS[: max(2, min(_EXAMPLE_WORDS, group))]
    counted = counter.count(" ".join(sample))
    per_word = max(0.1, (counted - single) / (len(sample) - 1))
    return Vocabulary(WORDS, (first,), max(0, round(single - per_word)), per_word, exact=False)


class _Search:
    """Finds words of one token each, after `before`, which alone has `before_tokens` with the overhead."""

    def __init__(self, counter: TokenCounter, before: str, before_tokens: int) -> None:
        self._counter = counter
        self._before = before
        self._before_tokens = before_tokens
        self._counts = 0

    def single_tokens(self, words: tuple[str, ...]) -> list[str]:
        """Return those of the words that have one token each; none once too many requests were sent."""
        if not words or self._counts >= _MAX_COUNTS:
            return []
        self._counts += 1
        tokens = self._counter.count(" ".join((self._before, *words))) - self._before_tokens
        if tokens == len(words):
            return list(words)
        if len(words) == 1 or tokens >= 2 * len(words):  # hardly one of them is a token
            return []
        middle = len(words) // 2
        return self.single_tokens(words[:middle]) + self.single_tokens(words[middle:])


def text_of_tokens(counter: TokenCounter, text: str, tokens: int) -> str:
    """Return the start of a text that has `tokens` tokens, by binary search over its characters.

    Raises InputError if the text is too short or if no start has this number.
    """
    low, high = 1, len(text)
    while low < high:
        middle = (low + high) // 2
        if counter.count(text[:middle]) < tokens:
            low = middle + 1
        else:
            high = middle
    for end in (low, low - 1, low + 1):
        if 0 < end <= len(text) and counter.count(text[:end]) == tokens:
            return text[:end]
    raise InputError(f"no prompt of exactly {tokens} tokens was found with {counter.source}")
