"""An engine in a process of its own, which is replaced when it dies."""

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from conch.backends import engine_child
from conch.backends.base import ModelSource
from conch.backends.engine import Engine
from conch.backends.engine_host.engine_process import EngineProcess
from conch.backends.engine_host.memory import EngineMemory, read_options, size_of
from conch.backends.fork_server import own_environment
from conch.backends.launch import Exit, Launcher, Program
from conch.backends.process import Backoff
from conch.errors import ConchError, ModelLoadError, Unavailable
from conch.generation import EngineInfo, EngineLoad, Generation, GenerationRequest, Listen
from conch.observability.logs import MODEL_LOGGER

_log = logging.getLogger(MODEL_LOGGER)

MAIN = Path(engine_child.__file__).with_name("main.py")
# How long an engine is given to end by itself.
_STOP_LIMIT_S = 10.0


class ProcessEngine(Engine):
    """Runs `driver`, a module of `conch_engine`, in a process. Ready while one is there that has loaded the model.

    `python` is the interpreter, by default the server's own; `memory` shares out what there is among engines, and
    `stated_cache` reads from `model.json` how many bytes of it the KV cache takes, None where it takes what it is
    offered. `load_limit_s` bounds a load, 0 does not.
    """

    def __init__(
        self,
        source: ModelSource,
        driver: str,
        *,
        python: Path | None = None,
        memory: EngineMemory | None = None,
        stated_cache: Callable[[Mapping[str, Any]], int | None] = lambda _: 0,
        load_limit_s: float = 0.0,
    ) -> None:
        self.load = EngineLoad()
        self.info: EngineInfo
        self._source = source
        self._driver = driver
        self._python = python
        self._memory = memory or EngineMemory()
        self._stated_cache = stated_cache
        self._load_limit_s = load_limit_s
        self._name = source.config.name
        self._process: EngineProcess | None = None
        self._withdrawn: EngineProcess | None = None  # what was in service when the engine was stopped
        self._backoff = Backoff()
        self._recovery: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ProcessEngine {self._name} {self._process!r}>"

    @property
    def ready(self) -> bool:
        """Whether the process runs and its model is loaded."""
        return self._process is not None and self._process.alive

    async def start(self) -> None:
        """Start the process and load the model. Raises ModelLoadError with what the engine said."""
        self._process = await self._bring_up()

    def generate(self, request: GenerationRequest, listen: Listen) -> Generation:
        """Send a request to the process. Raises Unavailable while there is none."""
        if self._process is None or not self._process.alive:
            raise Unavailable(f"model '{self._name}' is not ready: its engine is being restarted", retry_after_s=1.0)
        return self._process.generate(request, listen)

    async def stop(self) -> None:
        """End the process. What takes too long is killed."""
        await self._withdraw()
        if self._withdrawn is not None:
            await self._withdrawn.stop(_STOP_LIMIT_S)

    async def kill(self) -> None:
        """Kill the process."""
        await self._withdraw()
        if self._withdrawn is not None:
            await self._withdrawn.kill()

    def _launcher(self) -> Launcher:
        return Program([str(self._python or sys.executable), str(MAIN)], own_environment())

    def _options(self) -> Mapping[str, Any]:
        source = self._source
        return {
            "name": source.config.name,
            "version": source.version,
            "directory": str(source.version_directory),
            "parameters": dict(source.config.parameters),
            "settings": dict(source.settings),
        }

    async def _bring_up(self) -> EngineProcess:
        process = EngineProcess(self._name, self.load, self._died)
        directory = self._source.version_directory
        cache = self._stated_cache(read_options(directory / "model.json"))
        claim, offer = self._memory.claim(self._name, process, size_of(directory), cache)
        options = {**self._options(), "memory": offer}
        try:
            self.info = await process.start(self._launcher(), self._driver, options, self._load_limit_s)
            if not process.alive:
                raise ModelLoadError(f"the process of engine '{self._name}' ended after loading")
        except BaseException:
            self._memory.release(claim)
            await process.kill()
            raise
        self._memory.settle(claim, self.info)
        return process

    async def _withdraw(self) -> None:
        """Take the process out of service, and have no other take its place."""
        if self._recovery is not None:
            self._recovery.cancel()
            with suppress(asyncio.CancelledError):
                await self._recovery
        if self._process is not None:
            self._withdrawn, self._process = self._process, None

    def _died(self, exit_: Exit) -> None:
        if self._process is None or self._process.alive:
            return  # not in service yet: `_bring_up` finds out
        delay = self._backoff.delay(worked=self._process.has_worked)
        self._process = None
        self._tell(f"the engine {exit_}; it is restarted {f'in {delay:g} s' if delay else 'at once'}")
        self._recovery = asyncio.get_running_loop().create_task(self._recover(delay))
        self.on_ready_change()

    async def _recover(self, delay: float) -> None:
        while True:
            await asyncio.sleep(delay)
            try:
                self._process = await self._bring_up()
            except (ConchError, OSError) as error:
                delay = self._backoff.delay(worked=False)
                self._tell(f"{error}\nit is tried again in {delay:g} s")
            else:
                self.on_ready_change()
                return

    def _tell(self, text: str) -> None:
        first, _, rest = text.partition("\n")
        _log.error("%s", first, extra={"instance": self._name, "block": rest})
