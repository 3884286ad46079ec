"""Answers by coroutines, for requests that wait for something other than inference."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
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
