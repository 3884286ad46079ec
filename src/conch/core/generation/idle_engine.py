"""An engine that is stopped when nobody has asked it for a while, and started again by the next request.

A model stays listed and ready while its engine sleeps: a request would be answered, it only takes longer. What belongs
to the engine (queue, metrics, admission) is not told apart either.
"""

import asyncio
from collections.abc import Sequence
from logging import getLogger

from conch.backends.engines.base import Engine
from conch.backends.processes.child_process import Backoff
from conch.core.load_errors import load_error
from conch.errors import Cancelled, ConchError, ConfigError, Unavailable
from conch.generation import Delta, DeltaCallback, Generation, GenerationRequest, Usage
from conch.model_config import ModelConfig

PARAMETER = "idle_unload_secs"
# How long a request waits for the engine at most.
WAIT_LIMIT_S = 300.0

_log = getLogger(__name__)


def idle_seconds(config: ModelConfig, default: int) -> int:
    """Return after how many seconds without requests a model's engine is stopped, 0 for never. Raises ConfigError."""
    text = config.parameters.get(PARAMETER, str(default))
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"parameter {PARAMETER} of model '{config.name}' must be a number of seconds, got '{text}'")
    return int(text)


class IdleEngine(Engine):
    """Runs `engine` while it is wanted.

    After `idle_s` seconds without a request it is stopped. The next request has it started and waits for that, for
    `wait_s` at most, as do those that come meanwhile. If it cannot be started, those are told, the model turns not
    ready, and it is tried again until it is up, as after a crash.
    """

    def __init__(self, engine: Engine, name: str, idle_s: float, *, wait_s: float = WAIT_LIMIT_S) -> None:
        self.load = engine.load
        self._engine = engine
        self._name = name
        self._idle_s = idle_s
        self._wait_s = wait_s
        self._awake = False
        self._ended = False
        self._failure = ""  # why it could not be started again
        self._retry_s = 0.0
        self._busy = 0  # requests that the engine holds
        self._waiting: dict[_Visit, GenerationRequest] = {}
        self._idle_since = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._falling_asleep: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<IdleEngine {self._name} {'awake' if self._awake else 'asleep'} {self._engine!r}>"

    @property
    def ready(self) -> bool:
        return self._engine.ready if self._awake else not self._failure and not self._ended

    async def start(self) -> None:
        self._engine.on_ready_change = self._changed
        await self._engine.start()
        self._woken()

    def generate(self, request: GenerationRequest, on_deltas: DeltaCallback) -> Generation:
        """Begin a request, or have it wait for the engine. Raises Unavailable if that is known to be in vain."""
        if self._failure:
            raise Unavailable(self._failure, retry_after_s=self._retry_s)
        visit = _Visit(self, on_deltas)
        if self._awake:
            self._admit(visit, request)
            return visit
        visit.limit = asyncio.get_running_loop().call_later(self._wait_s, self._waited_long, visit)
        self._waiting[visit] = request
        self.load.waiting = len(self._waiting)
        if self._waking is None:
            self._waking = asyncio.get_running_loop().create_task(self._wake())
        return visit

    async def stop(self) -> None:
        """Stop the engine; what waits for it is told."""
        await self._end_transitions()
        await self._engine.stop()

    async def kill(self) -> None:
        await self._engine.kill()
        await self._end_transitions()
        await self._engine.kill()

    def left(self, visit: "_Visit") -> None:
        """Note the end of a request."""
        if visit.generation is None:
            self._waiting.pop(visit, None)
            self.load.waiting = len(self._waiting)
            return
        self._busy -= 1
        if not self._busy and self._awake:
            self._rest()

    def _admit(self, visit: "_Visit", request: GenerationRequest) -> None:
        visit.generation = self._engine.generate(request, visit.on_deltas)
        self._busy += 1

    def _rest(self) -> None:
        """Begin to count: nobody wants anything."""
        loop = asyncio.get_running_loop()
        self._idle_since = loop.time()
        if self._alarm is None:
            self._alarm = loop.call_later(self._idle_s, self._look)

    def _look(self) -> None:
        """Stop the engine if it has been idle for long enough; the alarm is not set anew for each request."""
        loop = asyncio.get_running_loop()
        self._alarm = None
        if self._busy:
            return
        left = self._idle_since + self._idle_s - loop.time()
        if left > 0:
            self._alarm = loop.call_later(left, self._look)
            return
        self._awake = False
        self.load.asleep = True
        self._falling_asleep = loop.create_task(self._fall_asleep())

    async def _fall_asleep(self) -> None:
        _log.info(
            "model '%s' was idle for %g s; its engine is stopped until the next request", self._name, self._idle_s
        )
        await self._engine.stop()

    async def _wake(self) -> None:
        """Start the engine, however often it takes, and hand it what waits."""
        if self._falling_asleep is not None:
            await asyncio.wait([self._falling_asleep])
            self._falling_asleep = None
        _log.info("starting the engine of model '%s', which is wanted again", self._name)
        backoff = Backoff()
        while True:
            try:
                await self._engine.start()
            except Exception as error:
                await self._failed(load_error(error), backoff.delay(worked=False))
            else:
                break
        self._waking = None
        self._woken()

    async def _failed(self, error: ConchError, delay: float) -> None:
        """Tell what waits, and be not ready until the next attempt has succeeded."""
        _log.error("starting the engine of model '%s' again: %s", self._name, error)
        self._failure = f"model '{self._name}' was idle, and its engine cannot be started again: {error}"
        self._retry_s = max(delay, 1.0)
        for visit in list(self._waiting):
            visit.on_deltas((), Unavailable(self._failure, retry_after_s=self._retry_s))
        self._changed()
        await asyncio.sleep(delay)

    def _woken(self) -> None:
        self.info = self._engine.info
        self.load.asleep = False
        self._awake = True
        if self._failure:
            self._failure = ""
            self._changed()
        waiting, self._waiting = self._waiting, {}
        self.load.waiting = 0
        for visit, request in waiting.items():
            visit.wait_no_more()
            try:
                self._admit(visit, request)
            except ConchError as error:  # it has died already
                visit.on_deltas((), error)
        if not self._busy:
            self._rest()

    def _waited_long(self, visit: "_Visit") -> None:
        text = f"model '{self._name}' was idle, and loading it again takes longer than {self._wait_s:g} s"
        visit.on_deltas((), Unavailable(text, retry_after_s=self._wait_s))

    def _changed(self) -> None:
        self.on_ready_change()

    async def _end_transitions(self) -> None:
        """Neither fall asleep nor wake up any more."""
        self._ended, self._awake = True, False
        if self._alarm is not None:
            self._alarm.cancel()
        if self._waking is not None:
            self._waking.cancel()
            await asyncio.wait([self._waking])
        if self._falling_asleep is not None:
            await asyncio.wait([self._falling_asleep])
        for visit in list(self._waiting):
            visit.on_deltas((), Unavailable(f"model '{self._name}' was unloaded before the request was finished"))


class _Visit:
    """One request; a `Generation` to whoever sent it."""

    __slots__ = ("_engine", "_listen", "generation", "limit")

    def __init__(self, engine: IdleEngine, on_deltas: DeltaCallback) -> None:
        self._engine: IdleEngine | None = engine
        self._listen = on_deltas
        self.generation: Generation | None = None  # once the engine has it
        self.limit: asyncio.TimerHandle | None = None

    def on_deltas(self, deltas: Sequence[Delta], end: Usage | ConchError | None) -> None:
        """Pass on what the engine says, or that it will say nothing. Nothing is said after the end."""
        engine = self._engine
        if engine is None:
            return
        if end is not None:
            self._engine = None
            self.wait_no_more()
            engine.left(self)
        self._listen(deltas, end)

    def wait_no_more(self) -> None:
        """Let go of the clock."""
        if self.limit is not None:
            self.limit.cancel()
            self.limit = None

    def abort(self) -> None:
        """End it: nobody wants the rest."""
        if self.generation is not None:
            self.generation.abort()
        else:
            self.on_deltas((), Cancelled("request was cancelled by the client"))
