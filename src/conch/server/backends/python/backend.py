"""The python backend: Triton's Python models, each instance in a separate process.

The process runs `child/python_main.py`; the other modules of this package are the server's side of it. A model that
crashes, leaks or blocks its interpreter does not affect other models.

`execute` has no timeout, so a model can be debugged: call `debugpy.listen(5678)` in `initialize` and attach to that
port. Each of several instances needs a different port, for example
`5678 + int(args["model_instance_name"].rpartition("_")[2])`. `initialize` may call `debugpy.wait_for_client()`, too,
unless `--backend-config=python,stub-timeout-seconds=<s>` sets a timeout for it.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from weakref import WeakSet

import orjson

from conch.base.errors import ModelLoadError
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.server.backends.bls import ModelCalls
from conch.server.backends.processes.child_process import reported
from conch.server.backends.processes.fork_server import ForkServer
from conch.server.backends.python.custom_metrics import InstanceMetrics, total
from conch.server.backends.python.environment import PARAMETER, Environments
from conch.server.backends.python.instance import CompletedProcesses, PythonInstance
from conch.server.backends.python.model_code import DEFAULT_FILENAME, Adapter, code_path
from conch.server.backends.python.model_process import ModelProcess
from conch.server.backends.python.settings import PythonSettings, parse_settings
from conch.server.observability.metrics.custom import MetricSample

_REQUIREMENTS_FILE = "requirements.txt"
_MAX_REQUIREMENTS_BYTES = 65_536
_MAX_SHOWN_PACKAGES = 8
# The name of a distribution at the start of a line; options (`-r`, `--hash`) and URLs have none.
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?=[\[<>=!~;@#,]|$)")


def missing_requirements(source: ModelSource) -> str:
    """Return a notice about packages that the server's environment lacks, "" if none is missing. Blocks.

    A model with an environment of another interpreter is not checked.
    """
    if source.config.parameters.get(PARAMETER):
        return ""
    for folder in (source.version_directory, source.directory):
        names = _required_packages(folder / _REQUIREMENTS_FILE)
        if missing := [name for name in names if not _is_installed(name)]:
            shown = ", ".join(missing[:_MAX_SHOWN_PACKAGES]) + (" …" if len(missing) > _MAX_SHOWN_PACKAGES else "")
            return (
                f"model '{source.config.name}': the server does not install {folder / _REQUIREMENTS_FILE}, and its "
                f"environment lacks {shown}; run pip install -r there, or name an environment by the parameter "
                f"{PARAMETER}"
            )
    return ""


def _required_packages(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_REQUIREMENTS_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [match[1] for line in text.splitlines() if (match := _REQUIREMENT.match(line))]


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except (PackageNotFoundError, ValueError):
        return False
    return True


_COMPLETE_METHOD = b"auto_complete_config"
# A class that is imported or has a base class may have methods that this file does not mention.
_INHERITING_CODE = (b"TritonPythonModel", b"import *")
_DECLARING_CODE = re.compile(rb"^\s*(import|from) conch\b", re.MULTILINE)
_PLAIN_CLASS = re.compile(rb"^class TritonPythonModel\s*(\(\s*(object)?\s*\))?\s*:", re.MULTILINE)


async def complete(
    source: ModelSource, settings: PythonSettings, environments: Environments, completed: CompletedProcesses
) -> Mapping[str, Any]:
    """Return the configuration's document as the model completes it, in a process that is kept for an instance.

    Starts no process for a model whose code defines its class without the method. Raises ModelLoadError.
    """
    document = source.config.document
    completed.discard(source)  # of an earlier load, whose files may have been others
    code = await asyncio.to_thread(code_path(source).read_bytes)
    declares = _DECLARING_CODE.search(code)
    inherits = (declares or any(word in code for word in _INHERITING_CODE)) and not _PLAIN_CLASS.search(code)
    if _COMPLETE_METHOD not in code and not inherits:
        return document
    launcher = await environments.launcher(source)
    name = f"{source.config.name}_autocomplete"
    process = ModelProcess(name, source, settings, InstanceMetrics(), on_death=lambda _: None)
    try:
        await process.start(launcher)
        what = f"auto_complete_config of model '{source.config.name}' is still running"
        document = _completed_document(name, await reported(name, what, process.complete(json.dumps(document))))
        completed.keep(process, source, launcher, settings)
    except BaseException:
        await process.kill()
        raise
    return document


def _completed_document(name: str, text: str) -> dict[str, Any]:
    """Return the completed configuration, which comes from the model's process. Raises ModelLoadError."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ModelLoadError(f"{name}: the process sent a configuration that is not valid JSON: {error}") from None
    if type(document) is not dict:
        raise ModelLoadError(f"{name}: the process sent a configuration that is not a JSON object")
    return document


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
        self._completed = CompletedProcesses()
        self._instances: WeakSet[PythonInstance] = WeakSet()

    async def stop(self) -> None:
        await self._completed.stop()
        self._fork_server.stop()
        await self._environments.remove()

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Call `auto_complete_config` in a separate process, if the model's code mentions it."""
        if notice := await asyncio.to_thread(missing_requirements, source):
            source.report("requirements_missing", notice)
        return await complete(source, parse_settings(source.settings), self._environments, self._completed)

    def instance(self, plan: InstancePlan, adapter: Callable[[], Adapter] | None = None) -> Instance:
        """Make an instance. `adapter` is called before each start, and returns what runs it in place of a `model.py`.

        Raises ConfigError for an invalid setting of the backend.
        """
        settings = parse_settings(plan.source.settings)
        instance = PythonInstance(plan, settings, self._environments, self._calls, adapter, self._completed)
        self._instances.add(instance)
        return instance

    def custom_metrics(self) -> Sequence[MetricSample]:
        return total(instance.metrics for instance in self._instances)


backend = PythonBackend
