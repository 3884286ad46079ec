"""Answers that take a while: the few that are coroutines, off the inference path."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from conch.errors import ConchError
from conch.frontends.http.errors import send_error
from conch.frontends.http.reply import HttpReply

_log = logging.getLogger(__name__)


class ReplyTasks:
    """Runs coroutines that fill replies, and holds on to them. A client that leaves does not stop them.

    `refuse` answers with an error, in the form of the protocol.
    """

    def __init__(self, refuse: Callable[[HttpReply, ConchError], None] = send_error) -> None:
        self._refuse = refuse
        self._running: set[asyncio.Task[None]] = set()

    def run(self, reply: HttpReply, work: Coroutine[Any, Any, None]) -> None:
        """Start `work`, which sends the reply or raises what is to be sent."""
        task = asyncio.get_running_loop().create_task(self._answered(reply, work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answered(self, reply: HttpReply, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ConchError as error:
            self._refuse(reply, error)
        except Exception:
            _log.exception("answering an HTTP request failed")
            self._refuse(reply, ConchError("internal error"))
