"""Clients repeat themselves: on one connection the head of a request is, as a rule, the last one again, to the byte.

Comparing it with what was parsed before takes a hundredth of what parsing takes. Only whole requests are recognised,
read at once between two others, so that the parser, which has not seen them, stands where it stood.
"""

from conch.frontends.http.message import HttpRequest

_END_OF_HEAD = b"\r\n\r\n"
# A head that is longer than this is parsed every time.
_MAX_HEAD = 4096
# With these a request is more than a head and a body of known size.
_UNFIT = (b"transfer-encoding", b"expect", b"upgrade", b"connection")


class HeadCache:
    """The head of the last request of a connection that could be recognised again."""

    __slots__ = ("_head", "_request", "_size")

    def __init__(self) -> None:
        self._head = b""
        self._size = -1  # of the whole request
        self._request: HttpRequest | None = None

    def recognise(self, data: bytes) -> HttpRequest | None:
        """Return the request that these bytes are, if they are one with the same head; None if they must be parsed."""
        if len(data) != self._size or self._request is None or not data.startswith(self._head):
            return None
        return self._request.again(data[len(self._head) :])

    def learn(self, data: bytes, request: HttpRequest) -> None:
        """Remember the head of a request that was parsed from these bytes and nothing else."""
        end = data.find(_END_OF_HEAD, 0, _MAX_HEAD) + len(_END_OF_HEAD)
        headers = request.headers
        if (
            end < len(_END_OF_HEAD)
            or len(data) - end != len(request.body)
            or not data[:1].isalpha()  # parsers forgive empty lines before a request
            or request.old_version
            or not request.keep_alive
            or any(name in headers for name in _UNFIT)
        ):
            return
        self._head = data[:end]
        self._size = len(data)
        self._request = request.again(b"")
