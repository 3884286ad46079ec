"""One instance of a Python model: a process that is replaced when it dies."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from conch.backends.base import Instance, InstancePlan
from conch.backends.batch import Batch
from conch.backends.calls import ModelCalls
from conch.backends.launch import Exit
from conch.backends.process import Backoff
from conch.backends.python_host.adapter import Adapter
from conch.backends.python_host.calls import OutgoingCalls
from conch.backends.python_host.custom_metrics import InstanceMetrics
from conch.backends.python_host.environment import Environments
from conch.backends.python_host.model_code import code_path
from conch.backends.python_host.model_process import ModelProcess
from conch.backends.python_host.settings import PythonSettings
from conch.errors import ConchError, ModelLoadError
from conch.observability.logs import MODEL_LOGGER

_log = logging.getLogger(MODEL_LOGGER)


class PythonInstance(Instance):
    """Executes batches in a process. Ready while one is there whose model has initialized itself."""

    takes_sources = True

    def __init__(
        self,
        plan: InstancePlan,
        settings: PythonSettings,
        environments: Environments,
        calls: ModelCalls | None = None,
        adapter: Callable[[], Adapter] | None = None,
    ) -> None:
        """Assign. `calls` is the server as the model may call it; without it, it cannot.

        `adapter` says, in a thread and before each start, what runs the model in place of code of its own.
        """
        self.plan = plan
        self._adapter = adapter
        self._calls = partial(OutgoingCalls, calls, self) if calls is not None else None
        self.metrics = InstanceMetrics()
        self._settings = settings
        self._environments = environments
        self._process: ModelProcess | None = None
        self._withdrawn: ModelProcess | None = None  # what was in service when the instance was stopped
        self._backoff = Backoff()
        self._recovery: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<PythonInstance {self.plan.name} {self._process!r}>"

    @property
    def ready(self) -> bool:
        """Whether the process runs and its model is initialized."""
        return self._process is not None and self._process.alive

    async def start(self) -> None:
        """Start the process and initialize the model. Raises ModelLoadError with what the model said."""
        self._process = await self._bring_up()

    def execute(self, batch: Batch) -> None:
        """Send the batch to the process."""
        assert self._process is not None
        self._process.execute(batch)

    @property
    def ahead(self) -> int:
        """As the process says, by how long its executions take."""
        return self._process.ahead if self._process is not None else 0

    @property
    def ahead_when_crowded(self) -> int:
        """How many batches to send ahead while a full one waits for every instance."""
        return self._process.ahead_when_crowded if self._process is not None else 0

    async def stop(self) -> None:
        """Let the process finish, finalize and end. What takes longer than `stub-timeout-seconds` is killed."""
        await self._withdraw()
        if self._withdrawn is not None:
            await self._withdrawn.stop()
        self.metrics.clear()

    async def kill(self) -> None:
        """Kill the process."""
        await self._withdraw()
        if self._withdrawn is not None:
            await self._withdrawn.kill()

    async def check_ready(self) -> bool:
        """Ask the model's `is_ready`, if it has one."""
        return self._process is not None and self._process.alive and await self._process.check_ready()

    async def _bring_up(self) -> ModelProcess:
        source = self.plan.source
        adapter = None
        # Before anything is started, because that there is no file is the commonest mistake.
        if self._adapter is None:
            code_path(source)
        else:
            adapter = await asyncio.to_thread(self._adapter)
        launcher = await self._environments.launcher(source)
        name = self.plan.name
        process = ModelProcess(name, source, self._settings, self.metrics, self._died, self._calls, adapter)
        try:
            await process.start(launcher)
            await process.initialize(self.plan)
            if not process.alive:
                raise ModelLoadError(f"the process of model instance '{self.plan.name}' ended after initialize")
        except BaseException:
            await process.kill()
            raise
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
        self._tell(f"the process {exit_}; it is restarted {f'in {delay:g} s' if delay else 'at once'}")
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
        _log.error("%s", first, extra={"instance": self.plan.name, "block": rest})
