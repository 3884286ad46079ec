"""Probes of the processes of a fleet."""

import urllib.request


def answers_ok(url: str, timeout_s: float) -> bool:
    """Whether a URL on the loopback interface answers with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - http on loopback
            return bool(response.status == 200)
    except (OSError, ValueError):
        return False
