"""A client for streamed chat completions of the OpenAI API, with the standard library only."""

import json
import re
import ssl
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPSConnection
from socket import gaierror
from typing import Any
from urllib.parse import quote, urlsplit

from conch.base.errors import ConchError, InvalidRequest, ModelLoading, Unavailable
from conch.base.http.credentials import check_no_credentials

_TIMEOUT_S = 600
_NOT_FOUND = 404
_DATA = b"data:"
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+/?")
# Pieces read in quicker succession were buffered, so their times of arrival are unknown.
_BURST_S = 0.001
# For fewer tokens a rate is meaningless.
_MIN_RATED_TOKENS = 3


class ContextExceeded(ConchError):
    """The messages have more tokens than the model's context."""


# Code in the body of an error → its class.
_ERRORS = {"model_loading": ModelLoading, "context_length_exceeded": ContextExceeded}


@dataclass(slots=True)
class Completion:
    """An answer, perhaps incomplete. Times are seconds since the request was sent."""

    text: str = ""
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_s: float | None = None
    total_s: float = 0.0
    tokens_per_second: float | None = None  # after the first token; None for too few tokens


@dataclass(slots=True)
class TokenRate:
    """Measures the rate of tokens from the times at which pieces were read, in seconds since the request."""

    pieces: int = 0
    in_first_burst: int = 0
    first_s: float = 0.0
    last_s: float = 0.0

    def add(self, now: float) -> None:
        """Record a piece that was read at `now`."""
        if not self.pieces:
            self.first_s = now
        if self.in_first_burst == self.pieces and (not self.pieces or now - self.last_s < _BURST_S):
            self.in_first_burst += 1
        self.pieces += 1
        self.last_s = now

    def rate(self, tokens: int) -> float | None:
        """Return tokens per second: of the tokens after the first burst, or of all if there are none after it."""
        if tokens < _MIN_RATED_TOKENS or not self.pieces:
            return None
        later = tokens * (1 - self.in_first_burst / self.pieces)
        if later < 1:
            return tokens / self.last_s if self.last_s else None
        return later / (self.last_s - self.first_s)


class OpenAIClient:
    """A client of the API at `url`, such as http://localhost:8000/v1; `ca_file` replaces the system's certificates."""

    def __init__(self, url: str, key: str = "", ca_file: str = "") -> None:
        """Raise InvalidRequest for an invalid URL or file."""
        try:
            check_no_credentials(url)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            example = f"http://{url.rstrip('/')}/v1" if _HOST_AND_PORT.fullmatch(url) else "http://localhost:8000/v1"
            raise InvalidRequest(f"'{url}' is not a valid API URL: expected one such as {example}")
        self._url = url
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=ca_file or None)
            except OSError as error:
                raise InvalidRequest(f"cannot read the certificates in '{ca_file}': {error}") from None
        self._place = (parts.hostname, parts.port)
        self._path = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def models(self) -> list[str]:
        """Return the language models, without their adapters. Raises ConchError, ModelLoading if one may follow.

        A model whose `max_model_len` is null makes embeddings; some servers do not send the field.
        """
        connection = self._connection()
        try:
            document = json.loads(self._ask(connection, "GET", "/models").read())
            models = [
                model["id"]
                for model in document["data"]
                if model.get("max_model_len", 1) is not None and not model.get("parent")
            ]
            if not models and (loading := document.get("loading")) is not None:
                raise ModelLoading(f"the server is loading {', '.join(map(str, loading)) or 'its repository'}")
            return models
        except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Unavailable(f"{self._url}: {_reason(error)}") from None
        finally:
            connection.close()

    def context_length(self, model: str) -> int:
        """Return the maximum of tokens of prompt and answer together, 0 if the server does not say it."""
        connection = self._connection()
        try:
            document = json.loads(self._ask(connection, "GET", f"/models/{quote(model, safe='')}").read())
            return int(document.get("max_model_len") or 0)
        except (ConchError, OSError, HTTPException, ValueError, TypeError, AttributeError, RecursionError):
            return 0
        finally:
            connection.close()

    def check_loaded(self, model: str) -> None:
        """Raise ModelLoading if a server says that a model is loading. Other servers need not have such a path."""
        connection = self._connection()
        try:
            self._ask(connection, "GET", f"/models/{quote(model, safe='')}").read()
        except ModelLoading:
            raise
        except (ConchError, OSError, HTTPException):
            return  # the request that follows fails, too, and has the better message
        finally:
            connection.close()

    def chat(
        self, model: str, messages: Sequence[dict[str, str]], settings: dict[str, Any], answer: Completion
    ) -> Generator[str, None, None]:
        """Yield the pieces of an answer as they are received, and update `answer`.

        Closing the iterator closes the connection, which cancels the request. Raises ConchError.
        """
        request = {"model": model, "messages": list(messages), "stream": True, **settings}
        body = json.dumps({**request, "stream_options": {"include_usage": True}})
        connection = self._connection()
        started = time.monotonic()
        rate = TokenRate()
        try:
            for line in self._ask(connection, "POST", "/chat/completions", body):
                if line.startswith(_DATA) and (data := line[len(_DATA) :].strip()) != b"[DONE]":
                    piece = _read(json.loads(data), answer)
                    answer.total_s = time.monotonic() - started
                    if piece:
                        rate.add(answer.total_s)
                        answer.first_s = answer.total_s if answer.first_s is None else answer.first_s
                        yield piece
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            raise Unavailable(f"{self._url}: {_reason(error)}") from None
        finally:
            answer.tokens_per_second = rate.rate(answer.completion_tokens)
            connection.close()
        if answer.finish_reason is None:
            raise Unavailable(f"{self._url}: the connection was closed before the end of the answer")

    def _connection(self) -> HTTPConnection:
        if self._tls is None:
            return HTTPConnection(*self._place, timeout=_TIMEOUT_S)
        return HTTPSConnection(*self._place, timeout=_TIMEOUT_S, context=self._tls)

    def _ask(self, connection: HTTPConnection, method: str, path: str, body: str | None = None) -> Any:
        connection.request(method, self._path + path, body, self._headers)
        response = connection.getresponse()
        if response.status != 200:
            default = f"{self._url} answers {response.status} {response.reason}"
            if response.status == _NOT_FOUND:
                example = "http://localhost:8000/v1" if self._path else f"{self._url.rstrip('/')}/v1"
                default += f"; --url must be the URL of the API, such as {example}"
            answer = response.read()
            message = _error_message(answer, default)
            raise _ERRORS.get(_error_code(answer), ConchError)(message)
        return response


def _reason(error: Exception) -> str:
    """Return the cause of a failed request, with a hint about the URL."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: no server listens there; is it running, and is this its HTTP port?"
    if isinstance(error, gaierror):
        return f"the host name cannot be resolved: {error.strerror}"
    if isinstance(error, BadStatusLine):
        return "the server does not speak HTTP/1.1; --url must have the HTTP port (8000), not the gRPC port"
    return str(error) or type(error).__name__


def _read(chunk: dict[str, Any], answer: Completion) -> str:
    """Add a chunk to the answer and return its text. Raises ConchError for an error in the chunk."""
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


def _error_code(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _error_message(body: bytes, default: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return default
