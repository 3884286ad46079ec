"""URLs with secrets: user names and passwords are refused, as they end up in logs and lists of processes."""

import re
from urllib.parse import urlsplit, urlunsplit

_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s]*@")


def check_no_credentials(url: str) -> None:
    """Raise ValueError, without the credentials in its message, if the URL has some."""
    if _CREDENTIALS.search(url):
        raise ValueError(f"'{_CREDENTIALS.sub('***@', url)}': credentials in URLs are not supported")


def without_secrets(url: str) -> str:
    """Return a URL without user, password and query, which may contain a signature."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "invalid URL"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
