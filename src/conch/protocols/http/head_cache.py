# Compiled by mypyc in wheels.
"""Caches the parsed head of a connection's last request: as a rule, the next head is byte for byte the same.

Comparing takes a hundredth of the time of parsing. Only whole requests that are read at once are recognised, so that
the parser's state, which does not see them, stays correct.
"""

from conch.protocols.http.message import HttpRequest

_END_OF_HEAD = b"\r\n\r\n"
# A longer head is parsed every time.
_MAX_HEAD_BYTES = 4096
# Headers with which a request is more than a head and a body of known size.
_UNCACHEABLE_HEADERS = (b"transfer-encoding", b"expect", b"upgrade", b"connection")


class HeadCache:
    """The head of the last request that can be recognised."""

    __slots__ = ("_head", "_request", "_size")

    def __init__(self) -> None:
        self._head = b""
        self._size = -1  # of the whole request
        self._request: HttpRequest | None = None

    def recognise(self, data: bytes) -> HttpRequest | None:
        """Return the request if the bytes have the cached head; None if they must be parsed."""
        if len(data) != self._size or self._request is None or not data.startswith(self._head):
            return None
        return self._request.again(data[len(self._head) :])

    def learn(self, data: bytes, request: HttpRequest) -> None:
        """Cache the head of a request that was parsed from exactly these bytes."""
        end = data.find(_END_OF_HEAD, 0, _MAX_HEAD_BYTES) + len(_END_OF_HEAD)
        headers = request.headers
        if (
            end < len(_END_OF_HEAD)
            or len(data) - end != len(request.body)
            or not data[:1].isalpha()  # parsers skip empty lines before a request
            or request.old_version
            or not request.keep_alive
            or any(name in headers for name in _UNCACHEABLE_HEADERS)
        ):
            return
        self._head = data[:end]
        self._size = len(data)
        self._request = request.again(b"")
