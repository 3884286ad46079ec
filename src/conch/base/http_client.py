"""HTTP client: proxies from the environment, safe redirects, errors without secrets.

The only module that imports `urllib3`.
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

from conch.base.errors import Unavailable, Unreachable
from conch.base.url_credentials import without_secrets

_CHUNK_BYTES = 1024 * 1024
_MAX_DOCUMENT_BYTES = 16 * 1024 * 1024  # of a body that is read whole
_MAX_REDIRECTS = 5
_TIMEOUT = urllib3.Timeout(connect=10, read=60)
_RETRIES = urllib3.Retry(connect=2, read=2, status=2, status_forcelist=(429, 502, 503, 504), backoff_factor=0.2,
                         redirect=0, raise_on_redirect=False, raise_on_status=False)  # fmt: skip


class HttpResponse:
    """A response whose body has not been read. A context manager that returns the connection to the pool."""

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
        """Yield the body as it is received, not decompressed. Raises Unreachable if the connection breaks."""
        try:
            yield from self._response.stream(_CHUNK_BYTES, decode_content=False)
        except HTTPError as error:
            raise Unreachable(f"{without_secrets(self.url)}: {cause_of(error)}") from error

    def read(self) -> bytes:
        """Return the whole body. Raises Unavailable if the connection breaks or the body exceeds the limit."""
        body = bytearray()
        for chunk in self.stream():
            body += chunk
            if len(body) > _MAX_DOCUMENT_BYTES:
                raise Unavailable(f"{without_secrets(self.url)}: a response of more than {_MAX_DOCUMENT_BYTES} bytes")
        return bytes(body)

    def json(self) -> Any:
        """Return the body as a JSON value. Raises Unavailable if it is not valid JSON."""
        try:
            return json.loads(self.read())
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"{without_secrets(self.url)}: the response is not JSON") from error


class HttpClient:
    """A pool of connections. Thread-safe."""

    def __init__(self) -> None:
        # Its warnings about failed attempts contain the whole URL, which may be signed.
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
        """Send a request and return the response of any status. Raises Unreachable without a response, Unavailable.

        Redirects are followed, with the Authorization header only to the same host, and never from HTTPS to HTTP.
        """
        sent = dict(headers or {})
        for _ in range(_MAX_REDIRECTS):
            answer = HttpResponse(self._request(method, url, sent, body), url)
            target = answer.headers.get("location")
            if answer.status not in (301, 302, 303, 307, 308) or not target:
                return answer
            answer.__exit__()
            next_url = urljoin(url, target)
            if urlsplit(url).scheme == "https" and urlsplit(next_url).scheme != "https":
                raise Unavailable(f"{without_secrets(url)}: redirects from HTTPS to {without_secrets(next_url)}")
            if urlsplit(url).netloc != urlsplit(next_url).netloc:
                sent.pop("Authorization", None)
            url = next_url
        raise Unavailable(f"{without_secrets(url)}: more than {_MAX_REDIRECTS} redirects")

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
    """Return a short cause of a failed request; urllib3's message contains the whole URL."""
    reason: object = error
    while isinstance(inner := getattr(reason, "reason", None), BaseException):
        reason = inner
    for kind, text in (
        (NameResolutionError, "the host name cannot be resolved"),
        (NewConnectionError, "connection refused or host unreachable"),
        (SSLError, "the certificate of the server is not trusted, or TLS failed"),
        (ReadTimeout, "timed out"),
        (OSError, "the connection was closed"),
        (HTTPError, "the connection was closed before the end of the response"),
    ):
        if isinstance(reason, kind):
            return text
    return type(reason).__name__
