"""Event logs of running servers, and of files."""

from pathlib import Path
from typing import Final

from conch.base.errors import ConchError, InvalidRequest, Unavailable
from conch.base.http.client import HttpClient, HttpSettings
from conch.base.http.credentials import client_key
from conch.base.process.running_servers import running_servers
from conch.domain.events.bundle import Bundle, is_bundle
from conch.domain.events.log import EventLog

_TIMEOUT_S: Final = 60
_MAX_BYTES: Final = 2**30
_DEFAULT_URL: Final = "http://127.0.0.1:8000"


def open_log(file: Path | None, url: str | None, last_s: float, api_key_file: str | None) -> tuple[EventLog, list[str]]:
    """Return the log in a file, or of a server where none is given, and what it lacks. Raises as the two do."""
    return read_log(file) if file else (fetch_log(url, last_s, api_key_file), [])


def fetch_log(url: str | None, last_s: float, api_key_file: str | None = None) -> EventLog:
    """Return the last seconds of a server's event log. Raises as `fetch`."""
    return EventLog.of_bytes(fetch(url, f"/v2/debug/events?last={last_s:.3f}", api_key_file)).checked()


def fetch(url: str | None, path: str, api_key_file: str | None = None) -> bytes:
    """Return a file of a server; without a URL of the newest server of this user, or port 8000.

    Raises InvalidRequest, Unavailable.
    """
    certificate = ""
    servers = [server for server in running_servers() if server.http]
    if url is not None:
        url = url.rstrip("/") if "://" in url else f"http://{url}"
        servers = [server for server in servers if server.url == url.replace("localhost", "127.0.0.1")]
    if servers:
        url, certificate = servers[-1].url, servers[-1].certificate if servers[-1].http_tls else ""
    url = url or _DEFAULT_URL
    key = client_key(api_key_file)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    client = HttpClient(HttpSettings.once(_TIMEOUT_S, environment_proxies=False, certificate=certificate))
    with client.open("GET", f"{url}{path}", headers) as response:
        if response.status != 200:
            raise Unavailable(_refusal(url, response.status, response.start(64 * 1024)))
        return response.read(_MAX_BYTES)


def read_log(path: Path) -> tuple[EventLog, list[str]]:
    """Return the event log in a file or an incident bundle, and what that lacks. Raises InvalidRequest."""
    try:
        if is_bundle(path):
            bundle = Bundle.read(path)
            return bundle.log, [*bundle.missing]
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"cannot read '{path}': {error.strerror or error}") from None
    if len(data) > _MAX_BYTES:
        raise InvalidRequest(f"'{path}' has more than {_MAX_BYTES // 2**20} MiB")
    try:
        return EventLog.of_bytes(data).checked(), []
    except ConchError as error:
        raise InvalidRequest(f"{path}: {error}") from None


def _refusal(url: str, status: int, body: bytes) -> str:
    text = body.decode("utf-8", "replace").strip()
    hint = {
        401: "; send a key with --api-key-file",
        403: "; from other machines it needs a key with the scope 'debug', or a server that permits it",
        404: "; it is not Conch, or a version without an event log",
    }.get(status, "")
    return f"{url} does not give its event log: HTTP status {status}{f': {text}' if text else ''}{hint}"
