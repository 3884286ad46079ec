"""HTTP client: proxies from the environment, safe redirects, errors without secrets.

The only module that imports `urllib3`.
"""

import hashlib
import json
import logging
import math
import ssl
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import BadStatusLine, RemoteDisconnected
from pathlib import Path
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, NameResolutionError, NewConnectionError, ProtocolError, SSLError
from urllib3.exceptions import TimeoutError as ReadTimeout

from conch.base.errors import Unavailable, Unreachable
from conch.base.http.credentials import without_secrets
from conch.base.http.reach import check_target
from conch.base.pacing import MinimumRate

_CHUNK_BYTES = 1024 * 1024
_MAX_DOCUMENT_BYTES = 16 * 1024 * 1024  # of a body that is read whole
_MAX_DOCUMENT_S = 300.0  # in which it must have come, since a server may send a byte each second
MIN_BYTES_PER_S, SLOW_WINDOW_S = 1024.0, 60.0  # of a body that may have any size
_MAX_REDIRECTS = 5
_PIECE_BYTES = 64 * 1024
_CUT = "the connection was closed before the end of the response"
_REDIRECTS = (301, 302, 303, 307, 308)
_RETRIES = urllib3.Retry(connect=2, read=2, status=2, status_forcelist=(429, 502, 503, 504), backoff_factor=0.2,
                         redirect=0, raise_on_redirect=False, raise_on_status=False)  # fmt: skip


@dataclass(frozen=True)
class HttpSettings:
    """How requests are sent. Times are seconds; `read_s` bounds each wait for the server, not a whole response.

    GET and HEAD are retried after broken connections and statuses such as 503. `ca_file` replaces the system's
    certificates. A server must show the first certificate of the PEM file `certificate` and no other, whatever names
    and authorities are in it.
    """

    connect_s: float = 10.0
    read_s: float = 60.0
    max_redirects: int = _MAX_REDIRECTS
    retries: bool = True
    ca_file: str | None = None
    verify: bool = True
    certificate: str = ""
    environment_proxies: bool = True

    @classmethod
    def once(cls, timeout_s: float, **others: Any) -> Self:
        """Return settings without retries, and with one time limit for connecting and reading."""
        return cls(timeout_s, timeout_s, retries=False, **others)


class RequestFailed(Unreachable):
    """A request has no complete response. `cause` is short, without the URL."""

    def __init__(self, url: str, cause: str) -> None:
        super().__init__(f"{without_secrets(url)}: {cause}")
        self.cause = cause


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
        """Yield the body as it is received, not decompressed.

        Raises RequestFailed if the connection breaks, or if a minute of waiting for it brings less than 60 KiB.
        """
        rate = MinimumRate(MIN_BYTES_PER_S, SLOW_WINDOW_S)
        while True:
            began = time.monotonic()
            try:
                piece = self._response.read1(_CHUNK_BYTES, decode_content=False)
            except (HTTPError, OSError) as error:
                raise RequestFailed(self.url, cause_of(error)) from error
            if not piece:
                return
            if slow := rate.shortfall(len(piece), time.monotonic() - began):
                raise RequestFailed(self.url, slow)
            yield piece

    def read(self, max_bytes: int = _MAX_DOCUMENT_BYTES, within_s: float = _MAX_DOCUMENT_S) -> bytes:
        """Return the whole body. Raises RequestFailed as `start`, Unavailable for more than `max_bytes`."""
        body = self.start(max_bytes + 1, within_s)
        if len(body) > max_bytes:
            raise Unavailable(f"{without_secrets(self.url)}: a response of more than {max_bytes} bytes")
        return body

    def start(self, max_bytes: int, within_s: float = math.inf) -> bytes:
        """Return at most `max_bytes` of the body. Raises RequestFailed, also if they take longer than `within_s`."""
        deadline = time.monotonic() + within_s
        body = bytearray()
        try:
            while len(body) < max_bytes and (piece := self._response.read1(_PIECE_BYTES, decode_content=False)):
                body += piece
                if time.monotonic() > deadline:
                    raise RequestFailed(self.url, f"the reply takes more than {within_s:.0f} s")
        except (HTTPError, OSError) as error:
            raise RequestFailed(self.url, cause_of(error)) from error
        return bytes(body[:max_bytes])

    def json(self, max_bytes: int = _MAX_DOCUMENT_BYTES) -> Any:
        """Return the body as a JSON value. Raises Unavailable if it is not valid JSON."""
        try:
            return json.loads(self.read(max_bytes))
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"{without_secrets(self.url)}: the response is not JSON") from error


class HttpClient:
    """A pool of connections. Thread-safe."""

    def __init__(self, settings: HttpSettings = HttpSettings()) -> None:
        self._settings = settings
        # Its warnings about failed attempts contain the whole URL, which may be signed.
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        self._proxies = urllib.request.getproxies() if settings.environment_proxies else {}
        self._pools: dict[str, urllib3.PoolManager] = {}

    def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | Iterable[bytes] | None = None,
    ) -> HttpResponse:
        """Send a request and return the response of any status. Raises RequestFailed without a response, Unavailable.

        Redirects are followed, with the Authorization header only to the same host, and never from HTTPS to HTTP nor
        from a public host to an inner one.
        """
        sent = dict(headers or {})
        for _ in range(self._settings.max_redirects or 1):
            answer = HttpResponse(self._request(method, url, sent, body), url)
            target = answer.headers.get("location")
            if answer.status not in _REDIRECTS or not target or not self._settings.max_redirects:
                return answer
            answer.__exit__()
            try:
                next_url = urljoin(url, target)
            except ValueError:
                raise Unavailable(f"{without_secrets(url)}: redirects to what is not a valid URL") from None
            if urlsplit(url).scheme == "https" and urlsplit(next_url).scheme != "https":
                raise Unavailable(f"{without_secrets(url)}: redirects from HTTPS to {without_secrets(next_url)}")
            check_target(url, next_url)
            if urlsplit(url).netloc != urlsplit(next_url).netloc:
                sent.pop("Authorization", None)
            url = next_url
        raise Unavailable(f"{without_secrets(url)}: more than {self._settings.max_redirects} redirects")

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | Iterable[bytes] | None
    ) -> urllib3.BaseHTTPResponse:
        try:
            return self._pool(url).request(
                method, url, body=body, headers=headers, preload_content=False, redirect=False,
                timeout=urllib3.Timeout(connect=self._settings.connect_s, read=self._settings.read_s),
                retries=_RETRIES if self._settings.retries and method in ("GET", "HEAD") else False,
            )  # fmt: skip
        except (HTTPError, ValueError) as error:
            raise RequestFailed(url, cause_of(error)) from error

    def _pool(self, url: str) -> urllib3.PoolManager:
        parts = urlsplit(url)
        proxy = self._proxies.get(parts.scheme, "")
        if proxy and urllib.request.proxy_bypass(parts.hostname or ""):
            proxy = ""
        if proxy not in self._pools:
            options: dict[str, Any] = {
                "maxsize": 32,
                "ca_certs": self._settings.ca_file,
                "cert_reqs": "CERT_REQUIRED" if self._settings.verify else "CERT_NONE",
            }
            if self._settings.certificate:
                shown = _fingerprint(url, self._settings.certificate)
                options |= {"cert_reqs": "CERT_NONE", "assert_fingerprint": shown}
            self._pools[proxy] = urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
        return self._pools[proxy]


def _fingerprint(url: str, path: str) -> str:
    """Return the SHA-256 of the first certificate of a PEM file. Raises RequestFailed."""
    try:
        before, footer, _ = Path(path).read_text(encoding="ascii", errors="replace").partition(ssl.PEM_FOOTER)
        pem = before[max(before.find(ssl.PEM_HEADER), 0) :] + footer
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not PEM"
        raise RequestFailed(url, f"cannot read its certificate '{path}': {reason}") from None


def answers_ok(url: str, timeout_s: float) -> bool:
    """Whether a URL, such as the readiness of a server on this machine, answers with status 200."""
    try:
        settings = HttpSettings.once(timeout_s, environment_proxies=False)
        with HttpClient(settings).open("GET", url) as response:
            return response.status == 200
    except Unavailable:
        return False


def cause_of(error: BaseException) -> str:
    """Return a short cause of a failed request; urllib3's message contains the whole URL."""
    reason: object = error
    while isinstance(inner := getattr(reason, "reason", None), BaseException):
        reason = inner
    for kind, text in (
        (NameResolutionError, "the host name cannot be resolved"),
        (NewConnectionError, _system_error(reason) or "connection refused or host unreachable"),
        (SSLError, "the certificate of the server is not trusted, or TLS failed"),
        (ReadTimeout, "timed out"),
        (OSError, "the connection was closed"),
        (ProtocolError, "the server does not speak HTTP" if _is_malformed(reason) else _CUT),
        (HTTPError, _CUT),
    ):
        if isinstance(reason, kind):
            return text
    return type(reason).__name__


def _system_error(error: object) -> str:
    """Return the system's reason for a failed connection, such as "connection refused", or ""."""
    cause = getattr(error, "__cause__", None)
    text = str(cause.strerror or "") if isinstance(cause, OSError) else ""
    return text[:1].lower() + text[1:]


def _is_malformed(error: object) -> bool:
    cause = error.args[1] if isinstance(error, ProtocolError) and len(error.args) > 1 else None
    return isinstance(cause, BadStatusLine) and not isinstance(cause, RemoteDisconnected)
