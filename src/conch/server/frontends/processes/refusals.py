# Compiled by mypyc in wheels.
"""The first check of limits: a frontend process repeats a refusal of the core until a retry may be admitted.

So a flood over a limit costs no decoding, and the core a count instead of a request.
"""

from typing import Final, TypeAlias

from conch.base.errors import LimitExceeded
from conch.domain.request import Timeline
from conch.server.frontends.processes.link import LIMITED, FrontendLink, times_of

Subject: TypeAlias = tuple[str, int, str]  # model, version and tenant

_MAX_SUBJECTS: Final = 1000
_MAX_HELD_NS: Final = 1_000_000_000


class Refusals:
    """What the core has refused for exceeding a limit, by subject."""

    def __init__(self, link: FrontendLink) -> None:
        self._link = link
        # From when a retry may be admitted, until when the core need not be asked (monotonic ns), message, quantity.
        self._held: dict[Subject, tuple[int, int, str, str]] = {}

    def note(self, subject: Subject, error: LimitExceeded, received: int) -> None:
        """Hold a refusal of a request that was received at a time (monotonic ns)."""
        if len(self._held) >= _MAX_SUBJECTS:
            self._held.clear()
        retry = received + int((error.retry_after_s or 0.0) * 1e9)
        self._held[subject] = (retry, min(retry, received + _MAX_HELD_NS), error.message, error.quantity)

    def check(self, subject: Subject, timeline: Timeline) -> None:
        """Raise LimitExceeded if the core would refuse a request, which it counts then."""
        held = self._held.get(subject)
        if held is None:
            return
        retry, until, message, quantity = held
        received = timeline.received
        if received >= until:
            del self._held[subject]
            return
        self._link.send((LIMITED, *subject, times_of(timeline)))
        raise LimitExceeded(message, retry_after_s=(retry - received) / 1e9, quantity=quantity)

    def clear(self) -> None:
        """Forget all: limits have changed."""
        self._held.clear()
