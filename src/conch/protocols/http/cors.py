"""Cross-origin requests: which pages of other sites may call the server from a browser (Fetch standard).

The names of the settings are vLLM's (`--allowed-origins` and so on).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from conch.protocols.http.message import HttpRequest, header

ANY: Final = "*"
MAX_AGE_S: Final = 600
# What pages may read of an answer besides its body and its usual headers.
_EXPOSED: Final = b"Inference-Header-Content-Length, Retry-After, X-Conch-Degraded, X-Conch-Ignored, X-Request-Id"


@dataclass(frozen=True, slots=True)
class Cors:
    """The pages that may call: `origins` such as `https://chat.example.com`; `*` in a list allows all.

    With `credentials` a page may send the user's cookies and certificates, so that each origin is answered by name.
    """

    origins: Sequence[str]
    methods: Sequence[str] = (ANY,)
    headers: Sequence[str] = (ANY,)
    credentials: bool = False

    def allows(self, request: HttpRequest) -> bool:
        """Whether a request comes from a page that may call."""
        origin = request.headers.get(b"origin")
        return origin is not None and (ANY in self.origins or origin.decode("latin-1") in self.origins)

    def lines(self, request: HttpRequest) -> bytes:
        """Return the headers of an answer to a page that may call."""
        if ANY in self.origins and not self.credentials:
            return header(b"Access-Control-Allow-Origin", b"*") + header(b"Access-Control-Expose-Headers", _EXPOSED)
        lines = header(b"Access-Control-Allow-Origin", request.headers[b"origin"])
        lines += header(b"Access-Control-Expose-Headers", _EXPOSED) + header(b"Vary", b"Origin")
        return lines + header(b"Access-Control-Allow-Credentials", b"true") if self.credentials else lines

    def permission(self, request: HttpRequest) -> bytes:
        """Return the headers of the answer to a preflight request of a page that may call."""
        asked = request.headers
        methods = asked[b"access-control-request-method"] if ANY in self.methods else ", ".join(self.methods).encode()
        names = asked.get(b"access-control-request-headers", b"")
        if ANY not in self.headers:
            names = ", ".join(self.headers).encode()
        lines = self.lines(request) + header(b"Access-Control-Allow-Methods", methods)
        if names:
            lines += header(b"Access-Control-Allow-Headers", names)
        return lines + header(b"Access-Control-Max-Age", str(MAX_AGE_S).encode())


def is_preflight(request: HttpRequest) -> bool:
    """Whether a browser asks by this request what a page may send."""
    headers = request.headers
    return request.method == b"OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers
