"""A client for HTTP: proxies from the environment, redirects that keep credentials at home, errors that name no secret.

The only module that knows `urllib3`.
"""

import json
import logging
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, NameResolutionError, NewConnectionError, SSLError
from urllib3.exceptions import TimeoutError as ReadTimeout

from conch.errors import Unavailable
from conch.repository.remote.location import without_secrets
from conch.repository.remote.source import Unreachable

_CHUNK_BYTES = 1024 * 1024
_DOCUMENT_BYTES = 16 * 1024 * 1024  # the most that is taken of an answer that is read whole
_REDIRECTS = 5
_TIMEOUT = urllib3.Timeout(connect=10, read=60)
_RETRIES = urllib3.Retry(connect=2, read=2, status=2, status_forcelist=(429, 502, 503, 504), backoff_factor=0.2,
                         redirect=0, raise_on_redirect=False, raise_on_status=False)  # fmt: skip


class HttpResponse:
    """An answer whose body has not been read. Use as a context manager: the connection is given back at the end."""

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str) -> None:
        self._response = response
        self.status = response.status
        self.headers = response.headers
        self.url = url  # after redirects

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()

    def stream(self) -> Iterator[bytes]:
        """Yield the body as it comes, not decompressed. Raises Unreachable if it breaks off."""
        try:
            yield from self._response.stream(_CHUNK_BYTES, decode_content=False)
        except HTTPError as error:
            raise Unreachable(f"{without_secrets(self.url)}: {cause_of(error)}") from error

    def read(self) -> bytes:
        """Return the whole body of a small answer. Raises Unavailable if it breaks off or is large."""
        body = bytearray()
        for chunk in self.stream():
            body += chunk
            if len(body) > _DOCUMENT_BYTES:
                raise Unavailable(f"{without_secrets(self.url)}: an answer of more than {_DOCUMENT_BYTES} bytes")
        return bytes(body)

    def json(self) -> Any:
        """Return the body as a JSON value. Raises Unavailable if it is none."""
        try:
            return json.loads(self.read())
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"{without_secrets(self.url)}: the answer is not JSON") from error


class HttpClient:
    """Connections that are kept. For use by several threads."""

    def __init__(self) -> None:
        # It warns of every attempt that failed, with the whole URL, which may be signed.
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        self._proxies = urllib.request.getproxies()
        self._pools: dict[str, urllib3.PoolManager] = {}

    def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | Iterable[bytes] | None = None,
    ) -> HttpResponse:
        """Send a request and return the answer, whatever its status. Raises Unreachable if there is none, Unavailable.

        Redirects are followed, with the Authorization header only to the same host, and never from HTTPS to HTTP.
        """
        sent = dict(headers or {})
        for _ in range(_REDIRECTS):
            answer = HttpResponse(self._request(method, url, sent, body), url)
            target = answer.headers.get("location")
            if answer.status not in (301, 302, 303, 307, 308) or not target:
                return answer
            answer.__exit__()
            following = urljoin(url, target)
            if urlsplit(url).scheme == "https" and urlsplit(following).scheme != "https":
                raise Unavailable(f"{without_secrets(url)}: redirects from HTTPS to {without_secrets(following)}")
            if urlsplit(url).netloc != urlsplit(following).netloc:
                sent.pop("Authorization", None)
            url = following
        raise Unavailable(f"{without_secrets(url)}: more than {_REDIRECTS} redirects")

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | Iterable[bytes] | None
    ) -> urllib3.BaseHTTPResponse:
        try:
            return self._pool(url).request(
                method, url, body=body, headers=headers, preload_content=False, redirect=False, timeout=_TIMEOUT,
                retries=_RETRIES if method in ("GET", "HEAD") else False,
            )  # fmt: skip
        except (HTTPError, ValueError) as error:
            raise Unreachable(f"{without_secrets(url)}: {cause_of(error)}") from error

    def _pool(self, url: str) -> urllib3.PoolManager:
        parts = urlsplit(url)
        proxy = self._proxies.get(parts.scheme, "")
        if proxy and urllib.request.proxy_bypass(parts.hostname or ""):
            proxy = ""
        if proxy not in self._pools:
            self._pools[proxy] = urllib3.ProxyManager(proxy) if proxy else urllib3.PoolManager(maxsize=8)
        return self._pools[proxy]


def cause_of(error: BaseException) -> str:
    """Return in a few words why there is no answer; the library's own text has the whole URL in it."""
    reason: object = error
    while isinstance(inner := getattr(reason, "reason", None), BaseException):
        reason = inner
    for kind, words in (
        (NameResolutionError, "the name of the host cannot be resolved"),
        (NewConnectionError, "connection refused or host unreachable"),
        (SSLError, "the certificate of the server is not trusted, or TLS failed"),
        (ReadTimeout, "timed out"),
        (OSError, "the connection broke off"),
        (HTTPError, "the connection broke off before all of the answer had come"),
    ):
        if isinstance(reason, kind):
            return words
    return type(reason).__name__
