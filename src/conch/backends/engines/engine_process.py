"""One life of an engine's process: the requests that it works on, and what its messages mean."""

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
    """A request that the process works on."""

    def __init__(self, process: "EngineProcess", key: int, listen: DeltaCallback) -> None:
        self._process = process
        self._key = key
        self.listen = listen

    def abort(self) -> None:
        """Have the engine drop it, and tell the listener."""
        self._process.abort(self._key)


class EngineProcess:
    """A process with an engine in it, from `start` to its end.

    `load` is brought up to date with every step. `on_death` is called if it ends without having been stopped, after all
    its requests have been told.
    """

    def __init__(self, name: str, load: EngineLoad, on_death: Callable[[Exit], None]) -> None:
        self.name = name
        self.has_worked = False  # whether it has computed anything
        self._load = load
        self._on_death = on_death
        self._child = ChildProcess(name, self._received, self._exited)
        self._keys = count(1)
        self._running: dict[int, RunningGeneration] = {}
        self._loaded: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._leavings: EngineCleanup | None = None
        self._stopping = False

    def __repr__(self) -> str:
        return f"<EngineProcess {self._child!r} {len(self._running)} running>"

    @property
    def pid(self) -> int:
        """The process's number, 0 before it is started."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child.exit is None and self._child.pid != 0

    async def start(self, launcher: Launcher, driver: str, options: Mapping[str, Any], limit_s: float) -> EngineInfo:
        """Start the process and load the model. Raises ModelLoadError with the cause."""
        await self._child.start(launcher)
        self._leavings = EngineCleanup()
        self._child.send((messages.LOAD, driver, {**options, "scratch": str(self._leavings.folder)}))
        try:
            _, error, info = await asyncio.wait_for(asyncio.shield(self._loaded), limit_s or None)
        except TimeoutError:
            raise ModelLoadError(
                f"loading engine '{self.name}' took longer than {limit_s:g} s; a larger stub-timeout-seconds allows "
                "more, 0 any time"
            ) from None
        if error.endswith(":"):  # it has printed the cause
            await self.kill()
            error = f"{error}\n{self._child.last_words}"
        if error:
            raise ModelLoadError(f"engine '{self.name}' cannot load the model: {error}")
        self._leavings.note(info.pop("shared_memory", ()))
        return EngineInfo(engine=driver, **{**info, "supported_params": frozenset(info.get("supported_params", ()))})

    def generate(self, request: GenerationRequest, listen: DeltaCallback) -> RunningGeneration:
        """Send a request to the engine."""
        key = next(self._keys)
        generation = self._running[key] = RunningGeneration(self, key, listen)
        prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
        self._child.send((messages.GENERATE, key, prompt, _params(request), request.adapter, request.priority))
        return generation

    def abort(self, key: int) -> None:
        """End a request that nobody waits for; nothing happens if it has ended."""
        generation = self._running.pop(key, None)
        if generation is not None:
            self._child.send((messages.ABORT, key))
            generation.listen((), Cancelled("request was cancelled by the client"))

    async def stop(self, limit_s: float) -> None:
        """End the process, at first by asking; requests under way are told."""
        self._stopping = True
        self._child.resume()
        self._child.send((messages.STOP,))
        if not await self._child.wait(limit_s):
            await self.kill()

    async def kill(self) -> None:
        """End the process at once."""
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
            if generation is None:  # it was aborted while this was on its way
                continue
            told = [_delta(*delta) for delta in deltas]
            if end is None:
                generation.listen(told, None)
            else:
                del running[key]
                generation.listen(told, Usage(*end) if len(end) > _ERROR_LENGTH else _error(*end))

    def _exited(self, exit_: Exit) -> None:
        if not self._loaded.done():
            words = self._child.last_words
            text = f"the process of engine '{self.name}' {exit_}" + (f":\n{words}" if words else "")
            self._loaded.set_exception(ModelLoadError(text))
            self._loaded.exception()  # nobody asks any more if it was ended for having taken too long
        if self._leavings is not None:
            self._leavings.remove()
        self._load.running = self._load.waiting = 0
        self._load.kv_cache_usage = 0.0
        running, self._running = self._running, {}
        error: ConchError
        if self._stopping:
            error = Unavailable(f"model '{self.name}' was unloaded before the request was finished")
        else:
            error = ProcessDied(f"engine '{self.name}' {exit_} while this request was being generated")
        for generation in running.values():
            generation.listen((), error)
        if not self._stopping:
            self._on_death(exit_)


_ERROR_LENGTH = 2


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
    told = None if prompt is None else _prompt(*prompt)
    return Delta(index, text, token_ids, reason, stop_reason, _logprobs(logprobs), told)


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
    """Return what is not at its default, in what the wire can carry."""
    params: dict[str, Any] = {}
    for name in request.params.unusual():
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
