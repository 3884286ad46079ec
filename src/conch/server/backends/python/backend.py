"""The python backend: Triton's Python models, each instance in a separate process.

The process runs `child/python_main.py`; the other modules of this package are the server's side of it. A model that
crashes, leaks or blocks its interpreter does not affect other models.

`execute` has no timeout, so a model can be debugged: call `debugpy.listen(5678)` in `initialize` and attach to that
port. Each of several instances needs a different port, for example
`5678 + int(args["model_instance_name"].rpartition("_")[2])`. `initialize` may call `debugpy.wait_for_client()`, too,
unless `--backend-config=python,stub-timeout-seconds=<s>` sets a timeout for it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.server.backends.bls import ModelCalls
from conch.server.backends.processes.fork_server import ForkServer
from conch.server.backends.python.auto_complete import complete
from conch.server.backends.python.custom_metrics import total
from conch.server.backends.python.environment import Environments
from conch.server.backends.python.instance import PythonInstance
from conch.server.backends.python.model_code import DEFAULT_FILENAME, Adapter
from conch.server.backends.python.requirements_file import missing_requirements
from conch.server.backends.python.settings import parse_settings
from conch.server.observability.metrics.custom import MetricSample

_log = logging.getLogger(__name__)


class PythonBackend(Backend):
    """`backend: "python"`."""

    name = "python"
    default_model_filename = DEFAULT_FILENAME

    def __init__(self, fork_server: ForkServer | None = None, calls: ModelCalls | None = None) -> None:
        """Make the backend. `fork_server` may have been started already; `calls` answers the BLS calls of models."""
        self._calls = calls
        self._fork_server = fork_server or ForkServer()
        self._environments = Environments(self._fork_server)
        self._instances: WeakSet[PythonInstance] = WeakSet()

    async def stop(self) -> None:
        """End the fork server; remove the unpacked environments of models."""
        self._fork_server.stop()
        await self._environments.remove()

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Call `auto_complete_config` in a separate process, if the model's code mentions it."""
        if notice := await asyncio.to_thread(missing_requirements, source):
            _log.warning("%s", notice)
        return await complete(source, parse_settings(source.settings), self._environments)

    def instance(self, plan: InstancePlan, adapter: Callable[[], Adapter] | None = None) -> Instance:
        """Make an instance. `adapter` is called before each start, and returns what runs it in place of a `model.py`.

        Raises ConfigError for an invalid setting of the backend.
        """
        settings = parse_settings(plan.source.settings)
        instance = PythonInstance(plan, settings, self._environments, self._calls, adapter)
        self._instances.add(instance)
        return instance

    def custom_metrics(self) -> Sequence[MetricSample]:
        """Return the models' custom metrics, summed over their instances."""
        return total(instance.metrics for instance in self._instances)


backend = PythonBackend
