"""One engine process from its start to its end: its requests and the messages exchanged with it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from conch.backends.child.conch_child.engine import messages
from conch.backends.child.conch_child.ipc.wire import Message
from conch.backends.engines.cleanup import EngineCleanup
from conch.backends.processes.child_process import ChildProcess
from conch.backends.processes.launch import Exit, Launcher
from conch.errors import (
    BackendError,
    Cancelled,
    Code,
    ConchError,
    InvalidRequest,
    ModelLoadError,
    ProcessDied,
    Unavailable,
)
from conch.generation import (
    Delta,
    DeltaCallback,
    EngineInfo,
    EngineLoad,
    FinishReason,
    GenerationRequest,
    PromptTokens,
    TokenLogprob,
    Usage,
)

_FINISHED = {reason.value: reason for reason in FinishReason}
_CODES = {code.value: code for code in Code}


class RunningGeneration:
    """A request that the process is running."""

    def __init__(self, process: "EngineProcess", key: int, on_deltas: DeltaCallback) -> None:
        self._process = process
        self._key = key
        self.on_deltas = on_deltas

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
        self._child = ChildProcess(name, self._received, self._exited)
        self._keys = count(1)
        self._running: dict[int, RunningGeneration] = {}
        self._loaded: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._cleanup: EngineCleanup | None = None
        self._stopping = False

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

    async def start(self, launcher: Launcher, driver: str, options: Mapping[str, Any], timeout_s: float) -> EngineInfo:
        """Start the process and load the model. Raises ModelLoadError with the cause."""
        await self._child.start(launcher)
        self._cleanup = EngineCleanup()
        self._child.send((messages.LOAD, driver, {**options, "scratch": str(self._cleanup.folder)}))
        try:
            _, error, info = await asyncio.wait_for(asyncio.shield(self._loaded), timeout_s or None)
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
        self._cleanup.add_shared_memory(info.pop("shared_memory", ()))
        return EngineInfo(engine=driver, **{**info, "supported_params": frozenset(info.get("supported_params", ()))})

    def generate(self, request: GenerationRequest, on_deltas: DeltaCallback) -> RunningGeneration:
        """Send a request to the engine."""
        key = next(self._keys)
        generation = self._running[key] = RunningGeneration(self, key, on_deltas)
        prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
        self._child.send((messages.GENERATE, key, prompt, _params(request), request.adapter, request.priority))
        return generation

    def abort(self, key: int) -> None:
        """Abort a request and end it with Cancelled; a no-op if it has ended."""
        generation = self._running.pop(key, None)
        if generation is not None:
            self._child.send((messages.ABORT, key))
            generation.on_deltas((), Cancelled("request was cancelled by the client"))

    async def stop(self, timeout_s: float) -> None:
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
            self._stepped(message[1], message[2])
        elif kind == messages.LOADED:
            if not self._loaded.done():
                self._loaded.set_result(message)
        else:
            self._child.log(message[1], message[2])

    def _stepped(self, events: Sequence[Any], load: Sequence[Any]) -> None:
        self.has_worked = True
        stats = self._load
        stats.running, stats.waiting, stats.kv_cache_usage = load[0], load[1], load[2]
        stats.prefix_cache_queries, stats.prefix_cache_hits, stats.preemptions = load[3], load[4], load[5]
        running = self._running
        for key, deltas, end in events:
            generation = running.get(key)
            if generation is None:  # aborted while the message was in flight
                continue
            decoded = [_delta(*delta) for delta in deltas]
            if end is None:
                generation.on_deltas(decoded, None)
            else:
                del running[key]
                generation.on_deltas(decoded, Usage(*end) if len(end) > _ERROR_ITEMS else _error(*end))

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
        if not self._stopping:
            self._on_death(exit_)


_ERROR_ITEMS = 2  # of the `end` of an event


def _delta(
    index: int,
    text: str,
    token_ids: Sequence[int],
    finish: str | None,
    stop_reason: str | int | None,
    logprobs: Sequence[Sequence[tuple[int, str, float]]],
    prompt: Sequence[Any] | None = None,
) -> Delta:
    reason = None if finish is None else _FINISHED[finish]
    if not logprobs and prompt is None:
        return Delta(index, text, token_ids, reason, stop_reason)
    prompt_tokens = None if prompt is None else _prompt(*prompt)
    return Delta(index, text, token_ids, reason, stop_reason, _logprobs(logprobs), prompt_tokens)


def _prompt(
    token_ids: Sequence[int],
    text: str,
    pieces: Sequence[str],
    logprobs: Sequence[Sequence[tuple[int, str, float]]],
) -> PromptTokens:
    return PromptTokens(token_ids, text, pieces, _logprobs(logprobs))


def _logprobs(logprobs: Sequence[Sequence[tuple[int, str, float]]]) -> list[list[TokenLogprob]]:
    return [[TokenLogprob(*alternative) for alternative in token] for token in logprobs]


def _error(code: int, text: str) -> ConchError:
    kind = _CODES.get(code, Code.INTERNAL)
    if kind is Code.INVALID_ARG:
        return InvalidRequest(text)
    return Unavailable(text) if kind is Code.UNAVAILABLE else BackendError(text, kind)


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
    if not request.add_special_tokens:
        params["add_special_tokens"] = False
    if request.return_prompt:
        params["return_prompt"] = request.return_prompt
    if request.prompt_only:
        params["prompt_only"] = True
    return params
