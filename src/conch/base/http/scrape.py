"""Fetch a page of metrics."""

from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from conch.base.http.client import HttpClient, HttpSettings, RequestFailed

_TIMEOUT_S = 2.0
_MAX_BYTES = 32 << 20
_OK = 200


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """How to fetch: `headers` may hold keys and are never logged."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    ca_file: str | None = None
    verify: bool = True


def scrape(settings: ScrapeSettings) -> str:
    """Return the page. Raises OSError with the reason if there is none."""
    parts = urlsplit(settings.url)
    url = urlunsplit((parts.scheme, parts.netloc, parts.path or "/metrics", parts.query, ""))
    how = HttpSettings.once(
        _TIMEOUT_S, max_redirects=0, ca_file=settings.ca_file, verify=settings.verify, environment_proxies=False
    )
    try:
        with HttpClient(how).open("GET", url, {"Accept": "text/plain", **dict(settings.headers)}) as response:
            body = response.start(_MAX_BYTES)
    except RequestFailed as error:
        raise OSError(error.cause) from None
    if response.status != _OK:
        raise OSError(f"status {response.status}")
    return body.decode("utf-8", "replace")
