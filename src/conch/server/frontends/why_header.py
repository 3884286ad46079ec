"""`X-Conch-Why: 1`: answers say in a header where their time went, to clients that may read the event log."""

import asyncio
from time import monotonic_ns
from typing import Final

from conch.domain.causes.explain import Explainer
from conch.domain.causes.sentences import short_text
from conch.domain.events.log import EventLog
from conch.domain.tensor import Buffer
from conch.protocols.http.long_replies import ReplyTasks
from conch.protocols.http.message import header
from conch.protocols.http.reply import HttpReply
from conch.server.observability.event_reading import EventReader

# Of the log before the request, for what is usual.
_BEFORE_S: Final = 5.0
_MAX_S: Final = 60.0
# Answers that are explained at the same time; others are sent without the header.
_MAX_EXPLAINED: Final = 4


class ExplainedReplies:
    """Sends replies with the header. Reading the log delays such a reply, not the event loop."""

    def __init__(self, events: EventReader, tasks: ReplyTasks) -> None:
        self._events = events
        self._tasks = tasks
        self._running = 0

    def send(self, reply: HttpReply, status: int, headers: bytes, parts: tuple[Buffer, ...]) -> None:
        """Send a reply, later where it can be explained."""
        number, received = reply.recorded
        if not number or self._running >= _MAX_EXPLAINED:
            reply.send(status, headers, *parts)
            return
        self._running += 1
        self._tasks.run(reply, self._explain(reply, number, received, (status, headers, parts)))

    async def _explain(
        self, reply: HttpReply, number: int, received: int, content: tuple[int, bytes, tuple[Buffer, ...]]
    ) -> None:
        try:
            last_s = min((monotonic_ns() - received) / 1e9 + _BEFORE_S, _MAX_S)
            log = await self._events.read_in_slices(last_s)
            text = await asyncio.to_thread(_text, log, number)
        finally:
            self._running -= 1
        if text:
            reply.headers += header(b"X-Conch-Why", text.encode())
        status, headers, parts = content
        reply.send(status, headers, *parts)


def _text(log: EventLog, call: int) -> str:
    """Return the short form of the first request of a client's call, "" if the log does not have it."""
    numbers = log.requests["number"][(log.requests["exchange"] == call) & (log.requests["parent"] == 0)]
    found = Explainer(log).explain(int(numbers[0])) if len(numbers) else None
    return "" if found is None else short_text(found)
