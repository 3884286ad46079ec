"""Answers that list every model: made piece by piece, with other requests between the pieces."""

import asyncio
import logging
from collections.abc import Iterator
from time import monotonic

from conch.errors import ConchError
from conch.frontends.http.errors import send_error
from conch.frontends.http.reply import HttpReply

_log = logging.getLogger(__name__)

# How long one turn of the event loop is spent on an answer.
_SLICE_S = 0.005


def send_in_slices(reply: HttpReply, headers: bytes, pieces: Iterator[bytes]) -> None:
    """Answer 200 with all pieces: at once if making them takes no longer than a slice."""
    _Slices(reply, headers, pieces).go_on()


class _Slices:
    """One such answer."""

    def __init__(self, reply: HttpReply, headers: bytes, pieces: Iterator[bytes]) -> None:
        self._reply = reply
        self._headers = headers
        self._pieces = pieces
        self._made: list[bytes] = []

    def go_on(self) -> None:
        """Make pieces until the slice is over."""
        if not self._reply.open:
            return
        until = monotonic() + _SLICE_S
        try:
            for piece in self._pieces:
                self._made.append(piece)
                if monotonic() > until:
                    asyncio.get_running_loop().call_soon(self.go_on)
                    return
        except Exception:
            _log.exception("writing an answer failed")
            send_error(self._reply, ConchError("internal error"))
            return
        self._reply.send(200, self._headers, b"".join(self._made))
