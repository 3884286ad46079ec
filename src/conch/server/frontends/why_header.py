"""`X-Conch-Why: 1`: answers say where their time went, to clients that may read the event log."""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from conch.domain.causes.explain import Explainer
from conch.domain.causes.sentences import short_text
from conch.domain.events.log import EventLog
from conch.server.observability.event_reading import EventReader

# Of the log before the request, for what is usual.
_BEFORE_S: Final = 5.0
_MAX_S: Final = 60.0
# Answers that are explained at the same time; others are sent without.
_MAX_EXPLAINED: Final = 4

_log = logging.getLogger(__name__)


class ShortForms:
    """Explains the calls of clients in short. Reading the log delays their answers, not the event loop."""

    def __init__(self, events: EventReader) -> None:
        self._events = events
        self._running: set[asyncio.Task[None]] = set()

    def explain(self, call: int, received: int, finish: Callable[[str], None]) -> None:
        """Call `finish` with the short form for a call's number in the event log, "" where that is not known.

        `received` is when the call was received, in monotonic ns. `finish` completes the answer.
        """
        if not call or len(self._running) >= _MAX_EXPLAINED:
            finish("")
            return
        task = asyncio.get_running_loop().create_task(self._explain(call, received, finish))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _explain(self, call: int, received: int, finish: Callable[[str], None]) -> None:
        text = ""
        try:
            last_s = min((monotonic_ns() - received) / 1e9 + _BEFORE_S, _MAX_S)
            log = await self._events.read_in_slices(last_s)
            text = await asyncio.to_thread(_text, log, call)
        except Exception:
            _log.exception("an answer could not be explained")
        finish(text)


def _text(log: EventLog, call: int) -> str:
    """Return the short form of the first request of a client's call, "" if the log does not have it."""
    numbers = log.requests["number"][(log.requests["exchange"] == call) & (log.requests["parent"] == 0)]
    explanation = Explainer(log).explain(int(numbers[0])) if len(numbers) else None
    return "" if explanation is None else short_text(explanation)
