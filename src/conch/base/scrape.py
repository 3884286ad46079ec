"""Fetch a page of metrics with the standard library."""

from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

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
    connection = _connection(settings, parts.hostname or "localhost", parts.port, secure=parts.scheme == "https")
    try:
        path = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "text/plain", **dict(settings.headers)})
        response = connection.getresponse()
        body = response.read(_MAX_BYTES)
    except HTTPException as error:
        raise OSError(f"not an HTTP server: {type(error).__name__}") from None
    finally:
        connection.close()
    if response.status != _OK:
        raise OSError(f"status {response.status}")
    return body.decode("utf-8", "replace")


def _connection(settings: ScrapeSettings, host: str, port: int | None, *, secure: bool) -> HTTPConnection:
    if not secure:
        return HTTPConnection(host, port, timeout=_TIMEOUT_S)
    import ssl

    context = ssl.create_default_context(cafile=settings.ca_file)
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
