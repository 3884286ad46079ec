# Compiled by mypyc in wheels.
"""One engine process from its start to its end: its requests and the messages exchanged with it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from time import monotonic_ns
from typing import Any, Final

from conch.base.errors import (
    Cancelled,
    ConchError,
    InvalidRequest,
    ModelLoadError,
    ProcessDied,
    Unavailable,
    Unsupported,
)
from conch.domain.generation import DeltaCallback, EngineInfo, EngineLoad, GenerationRequest
from conch.server.backends.child.conch_child.engine import messages
from conch.server.backends.child.conch_child.ipc.wire import MAX_VALUES, Message, WireError
from conch.server.backends.engines.cleanup import EngineCleanup
from conch.server.backends.engines.untrusted_events import (
    GenerationBudget,
    engine_info,
    read_deltas,
    read_end,
    read_load,
    read_times,
)
from conch.server.backends.processes import untrusted
from conch.server.backends.processes.child_process import MAX_UNREAD_BYTES, ChildProcess
from conch.server.backends.processes.launch import Exit, Launcher

# Then the process is killed.
_STOP_TIMEOUT_S: Final = 10.0
# In a message while a request is in flight that returns its prompt: 20 log probabilities of 100,000 tokens.
_MAX_PROMPT_VALUES: Final = 100 * MAX_VALUES


class RunningGeneration:
    """A request that the process is running."""

    def __init__(
        self, process: "EngineProcess", key: int, on_deltas: DeltaCallback, budget: GenerationBudget, long: bool
    ) -> None:
        self._process = process
        self._key = key
        self.on_deltas = on_deltas
        self.budget = budget
        self.long = long  # its first delta describes the prompt

    def abort(self) -> None:
        """Abort the request in the engine and end it with Cancelled."""
        self._process.abort(self._key)


class EngineProcess:
    """An engine process, from `start` to its end.

    `load` is updated with every step. `on_death` is called if the process exits without `stop` or `kill`, after all of
    its requests have failed.
    """

    def __init__(self, name: str, load: EngineLoad, on_death: Callable[[Exit], None]) -> None:
        self.name = name
        self.has_worked = False  # whether it has completed a step
        self._load = load
        self._on_death = on_death
        self._child = ChildProcess(name, self._received, self._exited, max_payload=0)
        self._keys = count(1)
        self._running: dict[int, RunningGeneration] = {}
        self._adapter_changes: dict[int, asyncio.Future[ConchError | None]] = {}
        # Error text, and the fields of `EngineInfo`.
        self._loaded: asyncio.Future[tuple[str, dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self._context_length = 0
        self._cleanup: EngineCleanup | None = None
        self._stopping = False
        self._last_step = 0  # or when it got the first request after all others, monotonic ns

    def __repr__(self) -> str:
        return f"<EngineProcess {self._child!r} {len(self._running)} running>"

    @property
    def pid(self) -> int:
        """Process id, 0 before it is started."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._child.alive

    @property
    def working_since(self) -> int:
        """When it finished a step last while it has requests, or got them; 0 without any."""
        return self._last_step if self._running else 0

    def replace(self, why: str) -> None:
        """End the process as if it had died."""
        self._child.kill(why)

    @property
    def segments(self) -> frozenset[int]:
        """Inodes of its objects in /dev/shm."""
        return frozenset() if self._cleanup is None else self._cleanup.inodes

    async def start(
        self,
        launcher: Launcher,
        driver: str,
        options: Mapping[str, Any],
        timeout_s: float,
        cores: frozenset[int] = frozenset(),
    ) -> EngineInfo:
        """Start the process, on `cores` or any, and load the model. Raises ModelLoadError with the cause."""
        self._cleanup = await asyncio.to_thread(EngineCleanup)
        try:
            await self._child.start(launcher, cores=cores)
        except BaseException:
            self._cleanup.remove()
            raise
        self._child.send((messages.LOAD, driver, {**options, "scratch": str(self._cleanup.folder)}))
        try:
            error, fields = await asyncio.wait_for(asyncio.shield(self._loaded), timeout_s or None)
        except TimeoutError:
            raise ModelLoadError(
                f"loading engine '{self.name}' took longer than {timeout_s:g} s; increase stub-timeout-seconds, or set "
                "it to 0 for no timeout"
            ) from None
        if error.endswith(":"):  # the process printed the cause
            await self.kill()
            error = f"{error}\n{self._child.stderr_tail}"
        if error:
            raise ModelLoadError(f"engine '{self.name}' cannot load the model: {error}")
        await asyncio.to_thread(self._cleanup.find_shared_memory, self._child.pid)
        try:
            info = engine_info(driver, fields)
        except WireError as malformed:
            await self.kill()
            raise ModelLoadError(f"engine '{self.name}' sent a malformed IPC message: {malformed}") from None
        self._context_length = info.context_length
        return info

    def generate(self, request: GenerationRequest, on_deltas: DeltaCallback) -> RunningGeneration:
        """Send a request to the engine. Raises Unavailable if it has not read the prompts of others."""
        if self._child.unsent_bytes > MAX_UNREAD_BYTES:
            text = f"engine '{self.name}' has not read {MAX_UNREAD_BYTES >> 20} MiB of other prompts; try again later"
            raise Unavailable(text, retry_after_s=1.0)
        key = next(self._keys)
        params = request.params
        long = request.return_prompt in ("ids", "text") or params.prompt_logprobs is not None
        max_tokens = min(params.max_tokens or self._context_length, self._context_length)
        budget = GenerationBudget(params.n, max_tokens, params.n if long or request.return_prompt else 0)
        if not self._running:
            self._last_step = monotonic_ns()
        generation = self._running[key] = RunningGeneration(self, key, on_deltas, budget, long)
        if long:
            self._child.max_values = _MAX_PROMPT_VALUES
        prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
        self._child.send((messages.GENERATE, key, prompt, _params(request), request.adapter, request.priority))
        return generation

    def abort(self, key: int) -> None:
        """Abort a request and end it with Cancelled; a no-op if it has ended."""
        generation = self._running.pop(key, None)
        if generation is not None:
            self._child.send((messages.ABORT, key))
            generation.on_deltas((), Cancelled("request was cancelled by the client"))

    async def set_adapter(self, name: str, path: str) -> None:
        """Load a LoRA adapter, or unload it if `path` is "". Raises ConchError."""
        key = next(self._keys)
        changed = self._adapter_changes[key] = asyncio.get_running_loop().create_future()
        self._child.send((messages.ADAPTER, key, name, path))
        error = await changed
        if error is not None:
            raise error

    async def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Stop the process, after `timeout_s` by SIGKILL; its requests end with Unavailable."""
        self._stopping = True
        self._child.resume()
        self._child.send((messages.STOP,))
        if not await self._child.wait(timeout_s):
            await self.kill()

    async def kill(self) -> None:
        """Kill the process by SIGKILL."""
        self._stopping = True
        self._child.kill()
        await self._child.wait(None)

    def _received(self, message: Message, _: memoryview) -> None:
        kind = message[0]
        if kind == messages.STEP:
            _, events, load, times = untrusted.items(message, 4, "STEP")
            self._stepped(untrusted.array(events, "events"), load, times)
        elif kind == messages.LOADED:
            _, error, fields = untrusted.items(message, 3, "LOADED")
            if type(fields) is not dict or self._loaded.done():
                raise WireError("LOADED must come once, with an object")
            self._loaded.set_result((untrusted.message_text(error, "an error"), fields))
        elif kind == messages.ADAPTER_SET:
            _, key, code, error = untrusted.items(message, 4, "ADAPTER_SET")
            change = self._adapter_changes.pop(untrusted.integer(key, 0, untrusted.MAX_COUNT, "a key"), None)
            text = untrusted.message_text(error, "an error")
            if change is not None and not change.done():
                change.set_result(_adapter_error(code, text) if text else None)
        elif kind == messages.LOG:
            _, level, text = untrusted.items(message, 3, "LOG")
            untrusted.integer(level, messages.INFO, messages.ERROR, "a level of the log")
            self._child.output.write(level, untrusted.message_text(text, "a line of the log"), "engine")
        else:
            raise WireError(f"a message of the unknown type {kind!r:.40}")

    def _stepped(self, events: Sequence[Any], load: Any, times: Any) -> None:
        read_load(load, self._load)
        now = monotonic_ns()
        step = read_times(times, self._last_step or now, now)
        self._last_step = now
        tokens = 0
        self.has_worked = True
        running = self._running
        for event in events:
            key, given, end = untrusted.items(event, 3, "an event")
            generation = running.get(untrusted.integer(key, 0, untrusted.MAX_COUNT, "the key of a request"))
            if generation is None:  # aborted while the message was in flight
                continue
            deltas = read_deltas(given, generation.budget)
            for delta in deltas:
                tokens += len(delta.token_ids)
            if end is None:
                generation.on_deltas(deltas, None)
                continue
            ended = read_end(end)
            del running[key]
            if generation.long and not any(other.long for other in running.values()):
                self._child.max_values = MAX_VALUES
            generation.on_deltas(deltas, ended)
        if events and self._load.on_step is not None:
            self._load.on_step(*step, tokens)

    def _exited(self, exit_: Exit) -> None:
        if not self._loaded.done():
            words = self._child.stderr_tail
            text = f"the process of engine '{self.name}' {exit_}" + (f":\n{words}" if words else "")
            self._loaded.set_exception(ModelLoadError(text))
            self._loaded.exception()  # mark it as retrieved: after a timeout no caller awaits it
        if self._cleanup is not None:
            self._cleanup.remove()
        self._load.running = self._load.waiting = 0
        self._load.kv_cache_usage = 0.0
        running, self._running = self._running, {}
        error: ConchError
        if self._stopping:
            error = Unavailable(f"model '{self.name}' was unloaded before the request was finished")
        else:
            error = ProcessDied(f"engine '{self.name}' {exit_} while this request was being generated")
        for generation in running.values():
            generation.on_deltas((), error)
        changes, self._adapter_changes = self._adapter_changes, {}
        for change in changes.values():
            if not change.done():
                change.set_result(error)
        if not self._stopping:
            self._on_death(exit_)


def _adapter_error(code: Any, text: str) -> ConchError:
    return Unsupported(text) if code == messages.UNSUPPORTED else InvalidRequest(text)


def _params(request: GenerationRequest) -> dict[str, Any]:
    """Return the parameters that differ from their defaults, as types that the wire format supports."""
    params: dict[str, Any] = {}
    for name in request.params.non_defaults():
        value = getattr(request.params, name)
        params[name] = list(value) if isinstance(value, tuple) else value
    if request.params.logit_bias:
        params["logit_bias"] = dict(request.params.logit_bias)
    if request.params.structured is not None:
        params["structured"] = (request.params.structured.kind, request.params.structured.value)
        params["client"] = request.client
    if not request.add_special_tokens:
        params["add_special_tokens"] = False
    if request.return_prompt:
        params["return_prompt"] = request.return_prompt
    if request.prompt_only:
        params["prompt_only"] = True
    if request.images:
        params["images"] = [tuple(image) for image in request.images]
    return params
