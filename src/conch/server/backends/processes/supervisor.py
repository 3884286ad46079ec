"""Supervision of the process of an instance or engine: restart with backoff when it dies."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from conch.base.errors import ConchError
from conch.base.logs import MODEL_LOGGER
from conch.base.pacing import backoff_s
from conch.server.backends.base import Worker
from conch.server.backends.processes.launch import Exit

_FIRST_RESTART_S, _MAX_RESTART_S = 0.5, 30.0

_log = logging.getLogger(MODEL_LOGGER)


def restart_delay_s(deaths: int) -> float:
    """Return the delay before the restart of a process that died as often since one worked; 0 the first time.

    Other requests must not wait because of one that kills the process.
    """
    return backoff_s(deaths - 1, _FIRST_RESTART_S, _MAX_RESTART_S)


class Supervised(Protocol):
    """A process that runs a model."""

    @property
    def alive(self) -> bool:
        """Whether the process runs."""

    @property
    def pid(self) -> int:
        """Process id, 0 before it is started."""

    @property
    def has_worked(self) -> bool:
        """Whether it has executed anything."""

    @property
    def working_since(self) -> int:
        """See `Worker.working_since`."""

    def replace(self, why: str) -> None:
        """End the process as if it had died."""

    async def stop(self) -> None:
        """End the process when it has finished what it does, or after a timeout."""

    async def kill(self) -> None:
        """End the process immediately."""


P = TypeVar("P", bound=Supervised)


class ProcessSupervisor(Generic[P]):
    """Keeps one process of an instance or engine running: `current` is in service, None while there is none.

    `bring_up` starts a process that is ready for work and calls `died` if it exits without having been stopped.
    `on_change` is called when the process in service has died, and when another has replaced it. `kind` and `name`
    appear in the log.
    """

    def __init__(
        self, kind: str, name: str, bring_up: Callable[[], Awaitable[P]], on_change: Callable[[], None]
    ) -> None:
        self.current: P | None = None
        self.restarts = 0  # attempts to replace a process that had exited
        self._kind = kind
        self._name = name
        self._bring_up = bring_up
        self._on_change = on_change
        self._withdrawn: P | None = None
        self._deaths = 0  # since a process worked
        self._recovery: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ProcessSupervisor {self._name} {self.current!r}>"

    @property
    def ready(self) -> bool:
        """Whether a process is in service and runs."""
        return self.current is not None and self.current.alive

    @property
    def pid(self) -> int:
        """Id of the process in service, 0 without one."""
        return self.current.pid if self.current is not None and self.current.alive else 0

    async def start(self) -> None:
        """Start the first process. Raises what `bring_up` raises."""
        self.current = await self._bring_up()

    async def withdraw(self) -> P | None:
        """Retire the process without a replacement, and return it. Later calls return the same process."""
        if self._recovery is not None:
            self._recovery.cancel()
            with suppress(asyncio.CancelledError):
                await self._recovery
        if self.current is not None:
            self._withdrawn, self.current = self.current, None
        return self._withdrawn

    def died(self, exit_: Exit) -> None:
        """Replace the process, which has died and has no requests in flight."""
        if self.current is None or self.current.alive:
            return  # not in service yet: `bring_up` raises
        if self.current.has_worked:
            self._deaths = 0
        self._deaths += 1
        delay = restart_delay_s(self._deaths)
        self.current = None
        self._log(f"{self._kind} {exit_}; restarting {f'in {delay:g} s' if delay else 'now'}")
        self._recovery = asyncio.get_running_loop().create_task(self._recover(delay))
        self._on_change()

    async def _recover(self, delay: float) -> None:
        while True:
            await asyncio.sleep(delay)
            self.restarts += 1
            try:
                self.current = await self._bring_up()
            except (ConchError, OSError) as error:
                self._deaths += 1
                delay = restart_delay_s(self._deaths)
                self._log(f"{error}\nretrying in {delay:g} s")
            else:
                self._on_change()
                return

    def _log(self, text: str) -> None:
        first, _, rest = text.partition("\n")
        _log.error("%s", first, extra={"instance": self._name, "block": rest})


class SupervisedWorker(Worker, Generic[P]):
    """An instance or an engine that is a process."""

    _processes: ProcessSupervisor[P]

    @property
    def ready(self) -> bool:
        return self._processes.ready

    @property
    def pid(self) -> int:
        return self._processes.pid

    @property
    def restarts(self) -> int:
        return self._processes.restarts

    @property
    def working_since(self) -> int:
        return self._processes.current.working_since if self._processes.current is not None else 0

    def replace(self, why: str) -> bool:
        if not self._processes.ready:
            return False
        assert self._processes.current is not None
        self._processes.current.replace(why)
        return True

    async def start(self) -> None:
        await self._processes.start()

    async def stop(self) -> None:
        process = await self._processes.withdraw()
        if process is not None:
            await process.stop()

    async def kill(self) -> None:
        process = await self._processes.withdraw()
        if process is not None:
            await process.kill()
