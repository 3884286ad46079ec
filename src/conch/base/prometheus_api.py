"""Questions to the HTTP API of a Prometheus."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

from conch.base.errors import Unavailable

_TIMEOUT_S = 10.0


def ask_prometheus(url: str, path: str, parameters: Mapping[str, str], timeout_s: float = _TIMEOUT_S) -> Any:
    """Return `data` of what `/api/v1/<path>` answers. Raises Unavailable with the reason."""
    place = f"/api/v1/{path}"
    try:
        target = f"{url.rstrip('/')}{place}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(target, timeout=timeout_s) as response:  # noqa: S310 - the caller's URL
            return json.load(response)["data"]
    except urllib.error.HTTPError as error:
        with error:
            reason = f"HTTP status {error.code} for {place}{_message(error)}"
    except OSError as error:
        cause = getattr(error, "reason", error)
        reason = getattr(cause, "strerror", None) or str(cause)
    except (HTTPException, ValueError, KeyError, TypeError):
        reason = f"the answer for {place} is not Prometheus's"
    raise Unavailable(reason)


def _message(error: urllib.error.HTTPError) -> str:
    """Return the message of Prometheus, such as that of an invalid query."""
    try:
        return f": {json.load(error)['error']}"
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return ""
