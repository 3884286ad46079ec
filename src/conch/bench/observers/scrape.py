"""Fetch a page of metrics with the standard library."""

import http.client
from dataclasses import dataclass
from urllib.parse import urlsplit

_TIMEOUT_S = 2.0
_MAX_BYTES = 32 << 20


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
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP server: {type(error).__name__}") from None
    finally:
        connection.close()
    if response.status != http.HTTPStatus.OK:
        raise OSError(f"status {response.status}")
    return body.decode("utf-8", "replace")


def _connection(settings: ScrapeSettings, host: str, port: int | None, *, secure: bool) -> http.client.HTTPConnection:
    if not secure:
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    import ssl

    context = ssl.create_default_context(cafile=settings.ca_file)
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
