"""An engine in a process of its own, which is replaced when it dies."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conch.accelerators.visible import CUDA_VARIABLE, narrowed
from conch.backends import child
from conch.backends.base import ModelSource
from conch.backends.engines.base import Engine
from conch.backends.engines.engine_process import EngineProcess
from conch.backends.engines.memory import EngineMemory, read_options, size_of
from conch.backends.processes.environment import ChildEnvironment
from conch.backends.processes.launch import Launcher, Program
from conch.backends.processes.sandbox import confined
from conch.backends.processes.supervisor import ProcessSupervisor
from conch.backends.progress import reported
from conch.backends.python.settings import stub_timeout_s
from conch.errors import ModelLoadError, Unavailable
from conch.generation import DeltaCallback, EngineInfo, EngineLoad, Generation, GenerationRequest

MAIN = Path(child.__file__).with_name("engine_main.py")
# How long an engine is given to end by itself.
_STOP_LIMIT_S = 10.0


class ProcessEngine(Engine):
    """Runs `driver`, a module of `conch_child.engine`, in a process. Ready while one runs that has loaded the model.

    `python` is the interpreter, by default the server's own; `memory` shares out what there is among engines, and
    `stated_cache` reads from `model.json` how many bytes of it the KV cache takes, None where it takes what it is
    offered. `environment` says which variables the process gets. The setting `stub-timeout-seconds` bounds a load;
    without it, a load may take any time. Raises ConfigError for a value that makes no sense.
    """

    def __init__(
        self,
        source: ModelSource,
        driver: str,
        *,
        python: Path | None = None,
        memory: EngineMemory | None = None,
        stated_cache: Callable[[Mapping[str, Any]], int | None] = lambda _: 0,
        environment: ChildEnvironment | None = None,
    ) -> None:
        self.load = EngineLoad()
        self.info: EngineInfo
        self._source = source
        self._driver = driver
        self._python = python
        self._memory = memory or EngineMemory()
        self._stated_cache = stated_cache
        self._environment = environment or ChildEnvironment()
        self._load_limit_s = stub_timeout_s(source.config.backend, source.settings)
        self._name = source.config.name
        self._processes = ProcessSupervisor("engine", self._name, self._bring_up, lambda: self.on_ready_change())

    def __repr__(self) -> str:
        return f"<ProcessEngine {self._name} {self._processes.current!r}>"

    @property
    def ready(self) -> bool:
        """Whether the process runs and its model is loaded."""
        return self._processes.ready

    async def start(self) -> None:
        """Start the process and load the model. Raises ModelLoadError with what the engine said."""
        await self._processes.start()

    def generate(self, request: GenerationRequest, listen: DeltaCallback) -> Generation:
        """Send a request to the process. Raises Unavailable while there is none."""
        process = self._processes.current
        if process is None or not process.alive:
            raise Unavailable(f"model '{self._name}' is not ready: its engine is being restarted", retry_after_s=1.0)
        return process.generate(request, listen)

    async def stop(self) -> None:
        """End the process. What takes too long is killed."""
        process = await self._processes.withdraw()
        if process is not None:
            await process.stop(_STOP_LIMIT_S)

    async def kill(self) -> None:
        process = await self._processes.withdraw()
        if process is not None:
            await process.kill()

    def _launcher(self) -> Launcher:
        environment = self._environment.variables()
        gpus = {gpu for group in self._source.config.instance_groups for gpu in group.gpus}
        if gpus:
            environment[CUDA_VARIABLE] = narrowed(environment, sorted(gpus))
        return confined(Program([str(self._python or sys.executable), str(MAIN)], environment), self._source)

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
        what = f"the engine of model '{self._name}' is still loading"
        return await reported(self._name, what, self._start_process())

    async def _start_process(self) -> EngineProcess:
        process = EngineProcess(self._name, self.load, self._processes.died)
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
