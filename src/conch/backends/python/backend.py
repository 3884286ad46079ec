"""The python backend: Triton's Python models, each instance in a process of its own.

The process runs `child/python_main.py`; the other modules of this package are the server's side of it. A model that
crashes, leaks or blocks its interpreter affects no other model.

Nothing watches how long `execute` takes, so a model can be stopped in a debugger: let it call
`debugpy.listen(5678)` in `initialize` and attach to that port. With several instances give each a port of its own, for
example `5678 + int(args["model_instance_name"].rpartition("_")[2])`. `debugpy.wait_for_client()` may wait inside
`initialize`, too, unless `--backend-config=python,stub-timeout-seconds=<s>` limits that.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from conch.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.backends.bls import ModelCalls
from conch.backends.processes.fork_server import ForkServer
from conch.backends.python.adapter import Adapter
from conch.backends.python.auto_complete import complete
from conch.backends.python.custom_metrics import total
from conch.backends.python.environment import Environments
from conch.backends.python.instance import PythonInstance
from conch.backends.python.model_code import DEFAULT_FILENAME
from conch.backends.python.settings import parse_settings
from conch.observability.metrics.custom import MetricSample


class PythonBackend(Backend):
    """`backend: "python"`."""

    name = "python"
    default_model_filename = DEFAULT_FILENAME

    def __init__(self, fork_server: ForkServer | None = None, calls: ModelCalls | None = None) -> None:
        """Make the backend; `fork_server` is one that has been started ahead of time, `calls` what models may call."""
        self._calls = calls
        self._fork_server = fork_server or ForkServer()
        self._environments = Environments(self._fork_server)
        self._instances: WeakSet[PythonInstance] = WeakSet()

    async def stop(self) -> None:
        """End the fork server; remove what was unpacked for models that bring their own environment."""
        self._fork_server.stop()
        await self._environments.remove()

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Ask `auto_complete_config`, in a process of its own, if the model's code mentions it."""
        return await complete(source, parse_settings(source.settings), self._environments)

    def instance(self, plan: InstancePlan, adapter: Callable[[], Adapter] | None = None) -> Instance:
        """Make an instance; `adapter` says before each start what runs the model in place of code of its own.

        Raises ConfigError if a setting of the backend makes no sense.
        """
        settings = parse_settings(plan.source.settings)
        instance = PythonInstance(plan, settings, self._environments, self._calls, adapter)
        self._instances.add(instance)
        return instance

    def custom_metrics(self) -> Sequence[MetricSample]:
        """Return what the models count, added up over their instances."""
        return total(instance.metrics for instance in self._instances)


backend = PythonBackend
