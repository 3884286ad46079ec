"""Engines that run in a process, which is restarted when it dies."""

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from conch.base.errors import InvalidRequest, ModelLoadError, Unavailable
from conch.domain.files.model_folder import read_json_object
from conch.domain.generation import DeltaCallback, EngineInfo, EngineLoad, Generation, GenerationRequest
from conch.machine.accelerators.gpus import CUDA_VARIABLE, narrowed
from conch.server.backends import child
from conch.server.backends.base import ModelSource
from conch.server.backends.engines.base import Engine
from conch.server.backends.engines.engine_process import EngineProcess
from conch.server.backends.engines.memory import EngineMemory, folder_size
from conch.server.backends.processes.child_process import reported
from conch.server.backends.processes.launch import ChildEnvironment, Launcher, Program
from conch.server.backends.processes.sandbox import confined
from conch.server.backends.processes.supervisor import ProcessSupervisor, SupervisedWorker
from conch.server.backends.python.settings import stub_timeout_s

_log = logging.getLogger(__name__)

MAIN = Path(child.__file__).with_name("engine_main.py")


class ProcessEngine(SupervisedWorker[EngineProcess], Engine):
    """Runs `driver`, a module of `conch_child.engine`, in a process. Ready while one runs that has loaded the model.

    `python` is the interpreter, by default the server's; `memory` has the reservations of all engines, and
    `cache_bytes` returns the size of the KV cache in that memory from the options of `model.json`, None for the
    default size. `environment` has the variables of the process. The setting `stub-timeout-seconds` limits the time of
    a load, by default unlimited. Raises ConfigError for an invalid value.
    """

    def __init__(
        self,
        source: ModelSource,
        driver: str,
        *,
        python: Path | None = None,
        memory: EngineMemory | None = None,
        cache_bytes: Callable[[Mapping[str, Any]], int | None] = lambda _: 0,
        environment: ChildEnvironment | None = None,
    ) -> None:
        self.load = EngineLoad()
        self.info: EngineInfo
        self._source = source
        self._driver = driver
        self._python = python
        self._memory = memory or EngineMemory()
        self._cache_bytes = cache_bytes
        self._environment = environment or ChildEnvironment()
        self._load_timeout_s = stub_timeout_s(source.config.backend, source.settings)
        self._name = source.config.name
        self._adapters: dict[str, str] = {}  # folders of those that were loaded at run time
        self._processes = ProcessSupervisor("engine", self._name, self._bring_up, lambda: self.on_ready_change())

    def __repr__(self) -> str:
        return f"<ProcessEngine {self._name} {self._processes.current!r}>"

    def generate(self, request: GenerationRequest, on_deltas: DeltaCallback) -> Generation:
        """Send a request to the process. Raises Unavailable while there is none."""
        process = self._processes.current
        if process is None or not process.alive:
            raise Unavailable(f"model '{self._name}' is not ready: its engine is being restarted", retry_after_s=1.0)
        return process.generate(request, on_deltas)

    @property
    def loaded_adapters(self) -> Mapping[str, str]:
        return self._adapters

    async def set_adapter(self, name: str, path: str) -> None:
        """Change the adapters of this process and of those that replace it."""
        process = self._processes.current
        if process is None or not process.alive:
            raise Unavailable(f"model '{self._name}' is not ready: its engine is being restarted", retry_after_s=1.0)
        await process.set_adapter(name, path)
        if path:
            self._adapters[name] = path
        else:
            self._adapters.pop(name, None)
        names = [known for known in self.info.adapters if known != name]
        self.info = replace(self.info, adapters=(*names, *([name] if path else [])))

    async def _load_adapters(self, process: EngineProcess) -> None:
        """Load the adapters of an earlier process again; one that has disappeared is left out."""
        for name, path in list(self._adapters.items()):
            try:
                await process.set_adapter(name, path)
            except InvalidRequest as error:
                del self._adapters[name]
                _log.error("LoRA adapter '%s' of model '%s' is lost: %s", name, self._name, error)
        self.info = replace(self.info, adapters=(*self.info.adapters, *self._adapters))

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
        cache = self._cache_bytes(await asyncio.to_thread(read_json_object, directory / "model.json"))
        weights = await asyncio.to_thread(folder_size, directory)
        claim, offer = self._memory.claim(self._name, process, weights, cache)
        options = {**self._options(), "memory": offer}
        try:
            self.info = await process.start(
                *(self._launcher(), self._driver, options, self._load_timeout_s), self._source.cores
            )
            if not process.alive:
                raise ModelLoadError(f"the process of engine '{self._name}' exited after loading")
            await self._load_adapters(process)
            if cache is None and (reduced := self._memory.reduced_cache(offer, self.info)):
                self._source.report("kv_cache_reduced", f"model '{self._name}': {reduced}")
        except BaseException:
            self._memory.release(claim)
            await process.kill()
            raise
        self._memory.settle(claim, self.info)
        self._memory.segments |= process.segments
        return process
