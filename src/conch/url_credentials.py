"""URLs with a user name and password: refused, because they end up in logs and lists of processes."""

import re

_CREDENTIALS = re.compile(r"(?<=://)[^/?#\s]*@")


def check_no_credentials(url: str) -> None:
    """Raise ValueError, without the credentials in its message, if the URL has some."""
    if _CREDENTIALS.search(url):
        raise ValueError(f"'{_CREDENTIALS.sub('***@', url)}': credentials in URLs are not supported")
