"""One process after another: what is in service, and what takes its place when it dies."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from conch.backends.processes.child_process import Backoff
from conch.backends.processes.launch import Exit
from conch.errors import ConchError
from conch.observability.logs import MODEL_LOGGER

_log = logging.getLogger(MODEL_LOGGER)


class Supervised(Protocol):
    """A process with a model in it."""

    @property
    def alive(self) -> bool:
        """Whether it runs."""

    @property
    def has_worked(self) -> bool:
        """Whether it has been of use."""


P = TypeVar("P", bound=Supervised)


class ProcessSupervisor(Generic[P]):
    """The processes of one instance or engine: `current` is in service, None while there is none.

    `bring_up` makes one that is ready for work, and has it call `died` when it ends without having been told to;
    `changed` is called when one has died in service and when another has taken its place. `kind` and `name` are what
    the log calls them.
    """

    def __init__(self, kind: str, name: str, bring_up: Callable[[], Awaitable[P]], changed: Callable[[], None]) -> None:
        self.current: P | None = None
        self._kind = kind
        self._name = name
        self._bring_up = bring_up
        self._changed = changed
        self._withdrawn: P | None = None  # what was in service at the end
        self._backoff = Backoff()
        self._recovery: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ProcessSupervisor {self._name} {self.current!r}>"

    @property
    def ready(self) -> bool:
        """Whether a process is in service, and alive."""
        return self.current is not None and self.current.alive

    async def start(self) -> None:
        """Bring the first one up. Raises what `bring_up` raises."""
        self.current = await self._bring_up()

    async def withdraw(self) -> P | None:
        """Take the process out of service, have no other take its place, and return it; again and again, if asked."""
        if self._recovery is not None:
            self._recovery.cancel()
            with suppress(asyncio.CancelledError):
                await self._recovery
        if self.current is not None:
            self._withdrawn, self.current = self.current, None
        return self._withdrawn

    def died(self, exit_: Exit) -> None:
        """Have another take the place of the one that has died. To be called with nothing under way in it."""
        if self.current is None or self.current.alive:
            return  # not in service yet: `bring_up` finds out
        delay = self._backoff.delay(worked=self.current.has_worked)
        self.current = None
        self._tell(f"the {self._kind} {exit_}; it is restarted {f'in {delay:g} s' if delay else 'at once'}")
        self._recovery = asyncio.get_running_loop().create_task(self._recover(delay))
        self._changed()

    async def _recover(self, delay: float) -> None:
        while True:
            await asyncio.sleep(delay)
            try:
                self.current = await self._bring_up()
            except (ConchError, OSError) as error:
                delay = self._backoff.delay(worked=False)
                self._tell(f"{error}\nit is tried again in {delay:g} s")
            else:
                self._changed()
                return

    def _tell(self, text: str) -> None:
        first, _, rest = text.partition("\n")
        _log.error("%s", first, extra={"instance": self._name, "block": rest})
