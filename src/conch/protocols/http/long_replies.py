"""Answers that take longer than a turn of the event loop: by coroutines, or written in slices."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from time import monotonic
from typing import Any

from conch.base.errors import ConchError, drop_frames
from conch.protocols.http.errors import send_error
from conch.protocols.http.reply import HttpReply

_log = logging.getLogger(__name__)


class ReplyTasks:
    """Runs coroutines that write replies, and keeps references to them. They run on if the client disconnects.

    `report` answers with an error, in the form of the protocol.
    """

    def __init__(self, report: Callable[[HttpReply, ConchError], None] = send_error) -> None:
        self._report = report
        self._running: set[asyncio.Task[None]] = set()

    def run(self, reply: HttpReply, work: Coroutine[Any, Any, None]) -> None:
        """Start `work`, which sends the reply or raises the error to send."""
        task = asyncio.get_running_loop().create_task(self._run(reply, work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, reply: HttpReply, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ConchError as error:
            self._report(reply, error)
            drop_frames(error)
        except Exception as error:
            _log.exception("an HTTP request failed unexpectedly")
            self._report(reply, ConchError("internal error"))
            drop_frames(error)


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
