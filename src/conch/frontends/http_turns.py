"""No more requests in one turn of the event loop than leave it time for the answers of models.

When hundreds of clients ask at once, all of them are heard in the same turn. Were all of them served in it, a model
that is done would wait that long for its next batch, and idle while most of those clients are only refused.
"""

import asyncio
import logging
from collections import deque

from conch.frontends.http_errors import JSON
from conch.frontends.http_message import HttpRequest
from conch.frontends.http_owner import Handler
from conch.frontends.http_reply import HttpReply
from conch.protocol import documents

_log = logging.getLogger(__name__)

# About a millisecond's worth of refusals.
_PER_TURN = 32


class Turns:
    """A handler that hands on to another, at once or, when much comes in one turn, in order in the next turns."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn = 0.0
        self._left = 0
        self._later: deque[tuple[HttpRequest, HttpReply]] = deque()

    def __call__(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer now or later."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        turn = loop.time()  # does not change within a turn
        if turn != self._turn:
            self._turn = turn
            self._left = _PER_TURN
        if self._left and not self._later:
            self._left -= 1
            self._handler(request, reply)
            return
        if not self._later:
            loop.call_soon(self._go_on)
        self._later.append((request, reply))

    def _go_on(self) -> None:
        later = self._later
        for _ in range(min(len(later), _PER_TURN)):
            request, reply = later.popleft()
            if reply.open:
                self._handle(request, reply)
        if later:
            assert self._loop is not None
            self._loop.call_soon(self._go_on)

    def _handle(self, request: HttpRequest, reply: HttpReply) -> None:
        try:
            self._handler(request, reply)
        except Exception:
            _log.exception("handling %r failed", request)
            reply.send(500, JSON, documents.error("internal error"))
