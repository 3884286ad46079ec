"""Count the tokens of prompts as the server does."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from conch.measure.bench.input_settings import InputError, OpenAiRoute
from conch.measure.bench.inputs.openai_request import OpenAiEncoder, user_message
from conch.measure.bench.targets.http_probe import HttpProbe
from conch.measure.bench.targets.target import BenchTarget, TargetError

_TIMEOUT_S = 60.0
_API_PATHS = ("/v1", "/v3")


class TokenCounter(ABC):
    """Counts. `source` says by what, for the report."""

    source: str

    @abstractmethod
    def count(self, text: str) -> int:
        """Return the tokens of a request with this prompt, with what the chat template adds. Raises InputError."""

    def close(self) -> None:  # noqa: B027  only those with a connection
        """Release the connection."""


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

    def close(self) -> None:
        self._probe.close()


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

    def close(self) -> None:
        self._probe.close()


class LocalTokenizer(TokenCounter):
    """A tokenizer.json of the `tokenizers` package; knows no chat template."""

    def __init__(self, path: str) -> None:
        """Raise InputError for a missing package or an invalid file."""
        file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError:
            raise InputError("--tokenizer needs the package tokenizers: pip install tokenizers") from None
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:
            raise InputError(f"--tokenizer {file} is not a valid tokenizer.json: {error}") from None
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
        usage.close()
        return server
    server.close()
    if counted is not None:
        return usage
    usage.close()
    return None


def _works(counter: TokenCounter) -> int | None:
    try:
        return counter.count("one two three")
    except (InputError, TargetError):
        return None
