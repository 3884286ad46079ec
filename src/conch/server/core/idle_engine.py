"""Idle engines: an engine is stopped after a time without requests, and restarted by the next one.

The model of a stopped engine stays listed and ready: a request would be answered, it only takes longer. Queue, metrics
and admission do not distinguish a stopped engine from a running one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from logging import getLogger

from conch.base.errors import Cancelled, ConchError, ConfigError, Unavailable
from conch.domain.generation import Delta, DeltaCallback, Generation, GenerationRequest, Usage
from conch.domain.model_config import ModelConfig
from conch.server.backends.engines.base import Engine
from conch.server.backends.processes.supervisor import restart_delay_s
from conch.server.core.loading.load_outcomes import load_error

PARAMETER = "idle_unload_secs"
# How long a request waits for the start of the engine.
START_TIMEOUT_S = 300.0
_MAX_DIGITS = 9  # of a number of seconds

_log = getLogger(__name__)


def idle_seconds(config: ModelConfig, default: int) -> int:
    """Return the idle time in seconds after which a model's engine is stopped, 0 for never. Raises ConfigError."""
    text = config.parameters.get(PARAMETER, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise ConfigError(
            f"parameter {PARAMETER} of model '{config.name}' must be a number of seconds, got '{text[:100]}'"
        )
    return int(text)


class IdleEngine(Engine):
    """Runs `engine` while there are requests.

    After `idle_s` seconds without a request the engine is stopped. The next request starts it and waits for that, for
    at most `wait_s`, as do requests that arrive in the meantime. If the start fails, they fail, the model becomes not
    ready, and the start is retried until it succeeds, as after a crash.
    """

    def __init__(self, engine: Engine, name: str, idle_s: float, *, wait_s: float = START_TIMEOUT_S) -> None:
        self.load = engine.load
        self._engine = engine
        self._name = name
        self._idle_s = idle_s
        self._wait_s = wait_s
        self._running = False
        self._closed = False
        self._failure = ""  # why the last start has failed
        self._retry_s = 0.0
        self._in_flight = 0  # requests that the engine holds
        self._waiting: dict[_EngineRequest, GenerationRequest] = {}
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<IdleEngine {self._name} {'running' if self._running else 'stopped'} {self._engine!r}>"

    @property
    def loaded_adapters(self) -> Mapping[str, str]:
        return self._engine.loaded_adapters

    async def set_adapter(self, name: str, path: str) -> None:
        if not self._running:
            raise Unavailable(f"model '{self._name}' is idle: its engine starts with the next request for text")
        await self._engine.set_adapter(name, path)
        self.info = self._engine.info

    @property
    def ready(self) -> bool:
        return self._engine.ready if self._running else not self._failure and not self._closed

    @property
    def pid(self) -> int:
        return self._engine.pid

    @property
    def restarts(self) -> int:
        return self._engine.restarts

    @property
    def working_since(self) -> int:
        return self._engine.working_since if self._running else 0

    def replace(self, why: str) -> bool:
        return self._engine.replace(why)

    async def start(self) -> None:
        self._engine.on_ready_change = self._report_ready_change
        await self._engine.start()
        self._engine_started()

    def generate(self, request: GenerationRequest, on_deltas: DeltaCallback) -> Generation:
        """Start a request, or queue it for the start of the engine. Raises Unavailable if the last start has failed."""
        if self._failure:
            raise Unavailable(self._failure, retry_after_s=self._retry_s)
        held = _EngineRequest(self, on_deltas)
        if self._running:
            self._admit(held, request)
            return held
        held.timeout = asyncio.get_running_loop().call_later(self._wait_s, self._time_out, held)
        self._waiting[held] = request
        self.load.waiting = len(self._waiting)
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start_engine())
        return held

    async def stop(self) -> None:
        """Stop the engine; requests that wait for it fail."""
        await self._end_transitions()
        await self._engine.stop()

    async def kill(self) -> None:
        await self._engine.kill()
        await self._end_transitions()
        await self._engine.kill()

    def remove(self, held: "_EngineRequest") -> None:
        """Remove a request that has ended."""
        if held.generation is None:
            self._waiting.pop(held, None)
            self.load.waiting = len(self._waiting)
            return
        self._in_flight -= 1
        if not self._in_flight and self._running:
            self._begin_idle()

    def _admit(self, held: "_EngineRequest", request: GenerationRequest) -> None:
        held.generation = self._engine.generate(request, held.on_deltas)
        self._in_flight += 1

    def _begin_idle(self) -> None:
        """Start the idle time."""
        loop = asyncio.get_running_loop()
        self._idle_since = loop.time()
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(self._idle_s, self._check_idle)

    def _check_idle(self) -> None:
        """Stop the engine if it has been idle for `idle_s`; else set the timer to the rest, once for many requests."""
        loop = asyncio.get_running_loop()
        self._idle_timer = None
        if self._in_flight:
            return
        remaining = self._idle_since + self._idle_s - loop.time()
        if remaining > 0:
            self._idle_timer = loop.call_later(remaining, self._check_idle)
            return
        self._running = False
        self.load.stopped = True
        self._stopping = loop.create_task(self._stop_engine())

    async def _stop_engine(self) -> None:
        _log.info("model '%s' was idle for %g s; stopping its engine until the next request", self._name, self._idle_s)
        await self._engine.stop()

    async def _start_engine(self) -> None:
        """Start the engine, with retries, and submit the requests that wait."""
        if self._stopping is not None:
            await asyncio.wait([self._stopping])
            self._stopping = None
        _log.info("starting the engine of model '%s' for a new request", self._name)
        for failures in count(1):
            try:
                await self._engine.start()
            except Exception as error:
                await self._start_failed(load_error(error), restart_delay_s(failures))
            else:
                break
        self._starting = None
        self._engine_started()

    async def _start_failed(self, error: ConchError, delay: float) -> None:
        """Fail the requests that wait, and be not ready until a retry succeeds."""
        _log.error("the engine of model '%s' cannot be started again: %s; retrying in %.1f s", self._name, error, delay)
        self._failure = f"the engine of model '{self._name}', which was idle, cannot be started again: {error}"
        self._retry_s = max(delay, 1.0)
        for held in list(self._waiting):
            held.on_deltas((), Unavailable(self._failure, retry_after_s=self._retry_s))
        self._report_ready_change()
        await asyncio.sleep(delay)

    def _engine_started(self) -> None:
        self.info = self._engine.info
        self.load.stopped = False
        self._running = True
        if self._failure:
            self._failure = ""
            self._report_ready_change()
        waiting, self._waiting = self._waiting, {}
        self.load.waiting = 0
        for held, request in waiting.items():
            held.cancel_timeout()
            try:
                self._admit(held, request)
            except ConchError as error:  # it may have died already
                held.on_deltas((), error)
        if not self._in_flight:
            self._begin_idle()

    def _time_out(self, held: "_EngineRequest") -> None:
        text = f"the engine of model '{self._name}', which was idle, takes longer than {self._wait_s:g} s to start"
        held.on_deltas((), Unavailable(text, retry_after_s=self._wait_s))

    def _report_ready_change(self) -> None:
        self.on_ready_change()

    async def _end_transitions(self) -> None:
        """Cancel a start, await a stop, and begin neither of them any more."""
        self._closed, self._running = True, False
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._stopping is not None:
            await asyncio.wait([self._stopping])
        for held in list(self._waiting):
            held.on_deltas((), Unavailable(f"model '{self._name}' was unloaded before the request was finished"))


class _EngineRequest:
    """One request, before and while the engine has it: the `Generation` that its caller gets."""

    __slots__ = ("_deliver", "_engine", "generation", "timeout")

    def __init__(self, engine: IdleEngine, on_deltas: DeltaCallback) -> None:
        self._engine: IdleEngine | None = engine
        self._deliver = on_deltas
        self.generation: Generation | None = None  # once the engine has it
        self.timeout: asyncio.TimerHandle | None = None

    def on_deltas(self, deltas: Sequence[Delta], end: Usage | ConchError | None) -> None:
        """Deliver what the engine generates, or the end; a no-op after the end."""
        engine = self._engine
        if engine is None:
            return
        if end is not None:
            self._engine = None
            self.cancel_timeout()
            engine.remove(self)
        self._deliver(deltas, end)

    def cancel_timeout(self) -> None:
        """Cancel the timeout of the start."""
        if self.timeout is not None:
            self.timeout.cancel()
            self.timeout = None

    def abort(self) -> None:
        """Cancel the request."""
        if self.generation is not None:
            self.generation.abort()
        else:
            self.on_deltas((), Cancelled("request was cancelled by the client"))
