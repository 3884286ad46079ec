"""POST requests to targets by urllib3, with verified certificates and bounded replies."""

import logging
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from conch.base.http_client import cause_of
from conch.operate.alerts.services.service import OutgoingPost, PostReply

_TIMEOUT = urllib3.Timeout(connect=10, read=20)
_MAX_REPLY_S = 30.0
_MAX_REPLY_BYTES = 65_536
_PIECE_BYTES = 4096


class Unanswered(Exception):
    """The target sent no complete reply; the message has the cause, without the URL."""


class HttpPoster:
    """Posts to one target, through the proxy of the environment. `ca_file` replaces the system's certificates."""

    def __init__(self, ca_file: Path | None = None) -> None:
        # Its messages contain the whole URL.
        logging.getLogger("urllib3").setLevel(logging.ERROR)
        self._ca_file = str(ca_file) if ca_file else None
        self._pools: dict[str, urllib3.PoolManager] = {}

    def __call__(self, post: OutgoingPost) -> PostReply:
        """Send a request, without retries and redirects. Raises Unanswered."""
        headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "conch-alerts", **post.headers}
        deadline = time.monotonic() + _MAX_REPLY_S
        try:
            response = self._pool(post.url).request(
                "POST", post.url, body=post.body, headers=headers, preload_content=False, redirect=False, retries=False,
                timeout=_TIMEOUT,
            )  # fmt: skip
            try:
                body = b""
                while len(body) < _MAX_REPLY_BYTES and (piece := response.read1(_PIECE_BYTES)):
                    body += piece
                    if time.monotonic() > deadline:
                        raise Unanswered(f"the reply takes more than {_MAX_REPLY_S:.0f} s")
            finally:
                response.close()
            return PostReply(response.status, {name.lower(): value for name, value in response.headers.items()}, body)
        except (HTTPError, OSError, ValueError) as error:
            raise Unanswered(f"{urlsplit(post.url).hostname}: {cause_of(error)}") from None

    def _pool(self, url: str) -> urllib3.PoolManager:
        parts = urlsplit(url)
        proxy = urllib.request.getproxies().get(parts.scheme, "")
        if proxy and urllib.request.proxy_bypass(parts.hostname or ""):
            proxy = ""
        if proxy not in self._pools:
            self._pools[proxy] = (
                urllib3.ProxyManager(proxy, ca_certs=self._ca_file, cert_reqs="CERT_REQUIRED")
                if proxy
                else urllib3.PoolManager(ca_certs=self._ca_file, cert_reqs="CERT_REQUIRED")
            )
        return self._pools[proxy]
