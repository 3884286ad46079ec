"""A client of the OpenAI API with nothing but the standard library: chat completions, streamed."""

import json
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPSConnection
from socket import gaierror
from typing import Any
from urllib.parse import urlsplit

from conch.errors import ConchError, InvalidRequest, Unavailable

_TIMEOUT_S = 600
_NOT_FOUND = 404
_DATA = b"data:"
# Pieces that are read one right behind the other had been waiting in a buffer: when they came is not known.
_BURST_S = 0.001
# Of fewer tokens a rate says nothing.
_MIN_RATED_TOKENS = 3


@dataclass(slots=True)
class Completion:
    """An answer as far as it has come. Times are seconds since the request was sent."""

    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_s: float | None = None
    total_s: float = 0.0
    tokens_per_second: float | None = None  # from the first token on; None of too few


@dataclass(slots=True)
class TokenRate:
    """When the pieces of an answer were read, seconds since the request was sent."""

    pieces: int = 0
    in_first_burst: int = 0
    first_s: float = 0.0
    last_s: float = 0.0

    def add(self, now: float) -> None:
        """Take a piece that was read now."""
        if not self.pieces:
            self.first_s = now
        if self.in_first_burst == self.pieces and (not self.pieces or now - self.last_s < _BURST_S):
            self.in_first_burst += 1
        self.pieces += 1
        self.last_s = now

    def rate(self, tokens: int) -> float | None:
        """Return tokens per second: of those behind the first burst, or over all of the time if there are none."""
        if tokens < _MIN_RATED_TOKENS or not self.pieces:
            return None
        later = tokens * (1 - self.in_first_burst / self.pieces)
        if later < 1:
            return tokens / self.last_s if self.last_s else None
        return later / (self.last_s - self.first_s)


class OpenAIClient:
    """Speaks to the API at `url`, such as http://localhost:8000/v1."""

    def __init__(self, url: str, key: str = "") -> None:
        """Assign. Raises InvalidRequest if the URL is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest(f"'{url}' is no URL of an API: it must be like http://localhost:8000/v1")
        self._url = url
        self._secure = parts.scheme == "https"
        self._place = (parts.hostname, parts.port)
        self._path = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def models(self) -> list[str]:
        """Return the models that generate, without their adapters. Raises ConchError.

        A model without a context, `max_model_len`, makes embeddings; servers other than vLLM's kind do not say.
        """
        connection = self._connection()
        try:
            listed = json.loads(self._ask(connection, "GET", "/models").read())["data"]
            return [
                model["id"] for model in listed if model.get("max_model_len", 1) is not None and not model.get("parent")
            ]
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            raise Unavailable(f"{self._url}: {_reason(error)}") from None
        finally:
            connection.close()

    def chat(
        self, model: str, messages: Sequence[dict[str, str]], settings: dict[str, Any], answer: Completion
    ) -> Generator[str, None, None]:
        """Yield the pieces of an answer as they come and write down in `answer` what is known of it.

        Closing the iterator closes the connection, which ends the request in the server. Raises ConchError.
        """
        request = {"model": model, "messages": list(messages), "stream": True, **settings}
        body = json.dumps({**request, "stream_options": {"include_usage": True}})
        connection = self._connection()
        started = time.monotonic()
        pace = TokenRate()
        try:
            for line in self._ask(connection, "POST", "/chat/completions", body):
                if line.startswith(_DATA) and (data := line[len(_DATA) :].strip()) != b"[DONE]":
                    piece = _read(json.loads(data), answer)
                    answer.total_s = time.monotonic() - started
                    if piece:
                        pace.add(answer.total_s)
                        answer.first_s = answer.total_s if answer.first_s is None else answer.first_s
                        yield piece
        except (OSError, HTTPException, ValueError) as error:
            raise Unavailable(f"{self._url}: {_reason(error)}") from None
        finally:
            answer.tokens_per_second = pace.rate(answer.completion_tokens)
            connection.close()
        if answer.finish_reason is None:
            raise Unavailable(f"{self._url}: the answer broke off")

    def _connection(self) -> HTTPConnection:
        kind = HTTPSConnection if self._secure else HTTPConnection
        return kind(*self._place, timeout=_TIMEOUT_S)

    def _ask(self, connection: HTTPConnection, method: str, path: str, body: str | None = None) -> Any:
        connection.request(method, self._path + path, body, self._headers)
        response = connection.getresponse()
        if response.status != 200:
            otherwise = f"{self._url} answers {response.status} {response.reason}"
            if response.status == _NOT_FOUND:
                otherwise += "; --url must be that of the API, such as http://localhost:8000/v1"
            raise ConchError(_complaint(response.read(), otherwise))
        return response


def _reason(error: Exception) -> str:
    """Say why there is no answer, and what is probably wrong with the URL."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: no server listens there; is it running, and is this its HTTP port?"
    if isinstance(error, gaierror):
        return f"the name of the host cannot be resolved: {error.strerror}"
    if isinstance(error, BadStatusLine):
        return "what listens there does not speak HTTP/1.1; --url must name the HTTP port (8000), not that of gRPC"
    return str(error) or type(error).__name__


def _read(chunk: dict[str, Any], answer: Completion) -> str:
    """Take a chunk into the answer and return its text. Raises ConchError if it tells of a failure."""
    if "error" in chunk:
        raise ConchError(str(chunk["error"].get("message", chunk["error"])))
    if usage := chunk.get("usage"):
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.completion_tokens = usage["completion_tokens"]
    text = ""
    for choice in chunk.get("choices", ()):
        text += choice["delta"].get("content") or ""
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    answer.text += text
    return text


def _complaint(body: bytes, otherwise: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return otherwise
