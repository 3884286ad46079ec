"""Questions to the HTTP API of a Prometheus, and pages of metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from conch.base.errors import Unavailable
from conch.base.http.client import HttpClient, HttpResponse, HttpSettings, RequestFailed

_TIMEOUT_S, _SCRAPE_TIMEOUT_S = 10.0, 2.0
_MAX_BYTES, _MAX_PAGE_BYTES = 64 << 20, 32 << 20
_OK = 200


def ask_prometheus(url: str, path: str, parameters: Mapping[str, str], timeout_s: float = _TIMEOUT_S) -> Any:
    """Return `data` of what `/api/v1/<path>` answers. Raises Unavailable with the reason."""
    place = f"/api/v1/{path}"
    target = f"{url.rstrip('/')}{place}?{urlencode(parameters)}"
    try:
        with HttpClient(HttpSettings.once(timeout_s)).open("GET", target) as response:
            if response.status == _OK:
                return response.json(_MAX_BYTES)["data"]
            reason = f"HTTP status {response.status} for {place}{_message(response)}"
    except RequestFailed as error:
        reason = error.cause
    except (Unavailable, KeyError, TypeError):
        reason = f"the answer for {place} is not Prometheus's"
    raise Unavailable(reason)


def _message(response: HttpResponse) -> str:
    """Return the message of Prometheus, such as that of an invalid query."""
    try:
        return f": {response.json()['error']}"
    except (Unavailable, KeyError, TypeError):
        return ""


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """How to fetch: `headers` may hold keys and are never logged."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    ca_file: str | None = None
    verify: bool = True
    certificate: str = ""


def scrape(settings: ScrapeSettings) -> str:
    """Return the page. Raises OSError with the reason if there is none."""
    parts = urlsplit(settings.url)
    url = urlunsplit((parts.scheme, parts.netloc, parts.path or "/metrics", parts.query, ""))
    how = HttpSettings.once(
        _SCRAPE_TIMEOUT_S,
        max_redirects=0,
        ca_file=settings.ca_file,
        verify=settings.verify,
        certificate=settings.certificate,
        environment_proxies=False,
    )
    try:
        with HttpClient(how).open("GET", url, {"Accept": "text/plain", **dict(settings.headers)}) as response:
            body = response.start(_MAX_PAGE_BYTES)
    except RequestFailed as error:
        raise OSError(error.cause) from None
    if response.status != _OK:
        raise OSError(f"status {response.status}")
    return body.decode("utf-8", "replace")
