"""Questions to the HTTP API of a Prometheus."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from conch.base.errors import Unavailable
from conch.base.http.client import HttpClient, HttpResponse, HttpSettings, RequestFailed

_TIMEOUT_S = 10.0
_MAX_BYTES = 64 << 20


def ask_prometheus(url: str, path: str, parameters: Mapping[str, str], timeout_s: float = _TIMEOUT_S) -> Any:
    """Return `data` of what `/api/v1/<path>` answers. Raises Unavailable with the reason."""
    place = f"/api/v1/{path}"
    target = f"{url.rstrip('/')}{place}?{urlencode(parameters)}"
    try:
        with HttpClient(HttpSettings.once(timeout_s)).open("GET", target) as response:
            if response.status == 200:
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
