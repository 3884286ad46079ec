"""One instance of a Python model: a process, restarted when it dies."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from conch.base.errors import ModelLoadError
from conch.domain.request import Room
from conch.server.backends.base import Instance, InstancePlan, ModelSource
from conch.server.backends.batch import Batch
from conch.server.backends.bls import ModelCalls
from conch.server.backends.processes.child_process import reported
from conch.server.backends.processes.launch import Launcher
from conch.server.backends.processes.supervisor import ProcessSupervisor, SupervisedWorker
from conch.server.backends.python.custom_metrics import InstanceMetrics
from conch.server.backends.python.environment import Environments
from conch.server.backends.python.model_code import Adapter, code_path
from conch.server.backends.python.model_process import ModelProcess
from conch.server.backends.python.outgoing_bls import OutgoingCalls
from conch.server.backends.python.settings import PythonSettings

# How long a process waits for its instance. The load may fail before it.
_KEPT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Origin:
    """What a process was started from: an instance takes one only if it would start an equal one."""

    code: Path
    launcher: Launcher
    settings: PythonSettings


class CompletedProcesses:
    """Processes in which `auto_complete_config` has run: the first instance takes one, with its imports done.

    Holds them for a short time, one for each model version. Belongs to the event loop's thread.
    """

    def __init__(self) -> None:
        self._kept: dict[Path, tuple[_Origin, ModelProcess, asyncio.TimerHandle]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def keep(self, process: ModelProcess, source: ModelSource, launcher: Launcher, settings: PythonSettings) -> None:
        """Keep a process for an instance of this model version."""
        self.discard(source)
        timer = asyncio.get_running_loop().call_later(_KEPT_S, self._end, source.version_directory)
        self._kept[source.version_directory] = (_Origin(code_path(source), launcher, settings), process, timer)

    def take(self, source: ModelSource, launcher: Launcher, settings: PythonSettings) -> ModelProcess | None:
        """Return the process for an instance, None if there is none of the same code, interpreter and confinement."""
        kept = self._kept.get(source.version_directory)
        if kept is None or source.cores or kept[0] != _Origin(code_path(source), launcher, settings):
            return None
        _, process, timer = self._kept.pop(source.version_directory)
        timer.cancel()
        return process if process.alive else None

    def discard(self, source: ModelSource) -> None:
        """End the process for this model version, if there is one."""
        self._end(source.version_directory)

    async def stop(self) -> None:
        """End all processes."""
        for directory in list(self._kept):
            self._end(directory)
        await asyncio.gather(*self._ending)

    def _end(self, directory: Path) -> None:
        kept = self._kept.pop(directory, None)
        if kept is not None:
            _, process, timer = kept
            timer.cancel()
            ending = asyncio.get_running_loop().create_task(process.kill())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)


class PythonInstance(SupervisedWorker[ModelProcess], Instance):
    """Executes batches in a process. Ready while a process runs whose model is initialized."""

    takes_sources = True

    def __init__(
        self,
        plan: InstancePlan,
        settings: PythonSettings,
        environments: Environments,
        calls: ModelCalls | None = None,
        adapter: Callable[[], Adapter] | None = None,
        completed: CompletedProcesses | None = None,
    ) -> None:
        """`calls` answers the model's BLS calls; without it, the model cannot call others.

        `adapter` is called in a thread before each start, and returns what runs the model in place of a `model.py`.
        The first process of a `model.py` may be one of those that `completed` holds.
        """
        self.plan = plan
        self._adapter = adapter
        self._calls = partial(OutgoingCalls, calls, self) if calls is not None else None
        self.metrics = InstanceMetrics()
        self._settings = settings
        self._environments = environments
        self._completed = completed
        self._processes = ProcessSupervisor("process", plan.name, self._bring_up, lambda: self.on_ready_change())

    def __repr__(self) -> str:
        return f"<PythonInstance {self.plan.name} {self._processes.current!r}>"

    @property
    def ready(self) -> bool:
        process = self._processes.current  # not through the supervisor: it is asked for every request
        return process is not None and process.alive

    def execute(self, batch: Batch) -> None:
        process = self._processes.current
        assert process is not None
        process.execute(batch)

    @property
    def input_room(self) -> Room | None:
        process = self._processes.current
        return process.requests.input_room if process is not None and process.alive else None

    def ahead(self, *, crowded: bool) -> int:
        """Return how many batches to send ahead, by how long executions take."""
        process = self._processes.current
        return process.requests.ahead(crowded=crowded) if process is not None else 0

    async def stop(self) -> None:
        """Drain, finalize and end the process; kill it if that takes longer than `stub-timeout-seconds`."""
        await super().stop()
        self.metrics.clear()

    async def check_ready(self) -> bool:
        process = self._processes.current
        return process is not None and process.alive and await process.check_ready()

    async def _bring_up(self) -> ModelProcess:
        what = f"model '{self.plan.source.config.name}' is still initializing"
        return await reported(self.plan.name, what, self._start_process())

    async def _start_process(self) -> ModelProcess:
        source = self.plan.source
        adapter = None
        # Before a process is started: a missing file is the commonest mistake.
        if self._adapter is None:
            code_path(source)
        else:
            adapter = await asyncio.to_thread(self._adapter)
        launcher = await self._environments.launcher(source)
        name, died = self.plan.name, self._processes.died
        if self._completed is not None and adapter is None:
            kept = self._completed.take(source, launcher, self._settings)
            if kept is not None:
                kept.adopt(name, source, self.metrics, died, self._calls)
                if await self._initialized(kept, may_die=True):
                    return kept
        process = ModelProcess(name, source, self._settings, self.metrics, died, self._calls, adapter)
        try:
            await process.start(launcher, source.cores)
        except BaseException:
            await process.kill()
            raise
        await self._initialized(process)
        return process

    async def _initialized(self, process: ModelProcess, *, may_die: bool = False) -> bool:
        """Initialize the model in a process, which is ended otherwise. Returns False if it has died and may."""
        try:
            await process.initialize(self.plan)
            if not process.alive:
                raise ModelLoadError(f"the process of model instance '{self.plan.name}' ended after initialize")
        except BaseException as error:
            dead = not process.alive
            await process.kill()
            if may_die and dead and isinstance(error, ModelLoadError):
                return False
            raise
        return True
