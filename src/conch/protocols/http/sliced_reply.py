"""Answers that list every model: written in slices, between which the event loop serves other requests."""

import asyncio
import logging
from collections.abc import Iterator
from time import monotonic

from conch.protocols.http.reply import HttpReply

_log = logging.getLogger(__name__)

# The time for one answer in one turn of the event loop.
_SLICE_S = 0.001


def send_in_slices(reply: HttpReply, headers: bytes, pieces: Iterator[bytes]) -> None:
    """Answer 200 with all pieces, immediately if that takes no longer than a slice."""
    _SlicedReply(reply, headers, pieces).write_slice()


class _SlicedReply:
    """One answer in slices."""

    def __init__(self, reply: HttpReply, headers: bytes, pieces: Iterator[bytes]) -> None:
        self._reply = reply
        self._headers = headers
        self._pieces = pieces
        self._made: list[bytes] = []

    def write_slice(self) -> None:
        """Collect pieces until the slice is over; send the answer after the last."""
        if not self._reply.open:
            return
        until = monotonic() + _SLICE_S
        try:
            for piece in self._pieces:
                self._made.append(piece)
                if monotonic() > until:
                    asyncio.get_running_loop().call_soon(self.write_slice)
                    return
        except Exception:
            _log.exception("an HTTP request failed unexpectedly")
            self._reply.fail()
            return
        self._reply.send(200, self._headers, b"".join(self._made))
