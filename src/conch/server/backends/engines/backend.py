"""The base class of backends that generate text, whose engines run in processes.

A library may also pool: embed, score or classify texts. Such models execute batches by instances, as nothing is
generated: each instance is a process of the python backend that runs `conch_child/python/adapters/pooling_model.py`.
"""

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from conch.base.errors import ConfigError, ModelLoadError
from conch.base.extras import install_command
from conch.domain.files.model_folder import read_json_object
from conch.domain.llm.text_form import TEXT_TASK
from conch.domain.llm.text_model import Task, checkpoint_task, is_pooling
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.server.backends.engines.base import Engine
from conch.server.backends.engines.memory import EngineMemory
from conch.server.backends.engines.process_engine import ProcessEngine
from conch.server.backends.engines.tensors import engine_document, pooling_document
from conch.server.backends.processes.fork_server import ForkServer
from conch.server.backends.processes.launch import ChildEnvironment
from conch.server.backends.processes.sandbox import SETTINGS as SANDBOX_SETTINGS
from conch.server.backends.python.backend import PythonBackend
from conch.server.backends.python.environment import PARAMETER, environment_path
from conch.server.backends.python.model_code import Adapter

_ADAPTER = "conch_child.python.adapters.pooling_model"
# Settings of an engine's backend that also apply to pooling models.
_SETTINGS = ("stub-timeout-seconds", *SANDBOX_SETTINGS)


class EngineBackend(Backend):
    """A kind of model that generates, by the driver `conch_child.engine.<name>`.

    Its configurations have the tensors of Triton's vLLM backend and do not batch. `package` is the library's import
    name, "" for none, `extra` the extra of Conch that installs it.
    """

    default_model_filename = "model.json"
    package = ""
    extra = ""
    # Whether its library also pools texts. Such models have instances that execute batches.
    pools = False

    def __init__(self, fork_server: ForkServer | None = None, memory: EngineMemory | None = None) -> None:
        """Create the backend. `memory` has the reservations of all backends' engines.

        Engines get the environment of `fork_server`; pooling models are forked from it.
        """
        self._environment = fork_server.environment if fork_server is not None else ChildEnvironment()
        self._memory = memory or EngineMemory()
        self._fork_server = fork_server
        self._python: PythonBackend | None = None  # runs pooling models

    async def stop(self) -> None:
        if self._python is not None:
            await self._python.stop()

    def generates(self, source: ModelSource) -> bool:
        """Return whether a model version has an engine; a pooling model has instances."""
        return not (self.pools and is_pooling(source.version_directory))

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Add the tensors of Triton's vLLM backend, decoupled responses and one instance.

        A pooling model gets those of texts instead.
        """
        if self.generates(source):
            return engine_document(source.config.document)
        folder = source.version_directory
        options = read_json_object(folder / "model.json")
        checkpoint = read_json_object(folder / str(options.get("model", ".")) / "config.json")
        overrides = options.get("hf_overrides")  # of vLLM
        checkpoint |= overrides if isinstance(overrides, dict) else {}
        task, labels = checkpoint_task(checkpoint)
        embeds = "embed" in (options.get("task"), options.get("convert"))
        given = source.config.parameters.get(TEXT_TASK) or ("embed" if embeds else task.value)
        if given not in [known.value for known in Task]:
            raise ConfigError(
                f"parameter '{TEXT_TASK}' of model '{source.config.name}' is '{given}', not a task of texts"
            )
        task = Task(given)
        size = {Task.EMBED: checkpoint.get("hidden_size"), Task.SCORE: 1, Task.CLASSIFY: len(labels)}[task]
        return pooling_document(source.config.document, task, size if isinstance(size, int) and size else -1, labels)

    def instance(self, plan: InstancePlan) -> Instance:
        """Create an instance of a pooling model. Raises ModelLoadError for models with an engine."""
        source = plan.source
        if self.generates(source):
            raise ModelLoadError(f"backend '{self.name}' runs generative models by an engine; they have no instances")
        if self._python is None:
            self._python = PythonBackend(self._fork_server)
        program = interpreter(source, self.package, self.extra)
        parameters = {name: value for name, value in source.config.parameters.items() if name != PARAMETER}
        if program is not None:
            parameters[PARAMETER] = str(program.parent.parent)
        config = replace(source.config, parameters=parameters)
        task = config.parameters.get(TEXT_TASK, Task.EMBED.value)
        pooled = {"package": self.name, "directory": str(source.version_directory), "task": task}
        adapter = partial(Adapter, _ADAPTER, {"pooling": json.dumps(pooled)})
        settings = {key: source.settings[key] for key in _SETTINGS if key in source.settings}
        return self._python.instance(replace(plan, source=replace(source, config=config, settings=settings)), adapter)

    def engine(self, source: ModelSource) -> Engine:
        """Create the engine of a model version; its `start` loads the model.

        Raises ConfigError, and ModelLoadError if its packages are not installed.
        """
        return ProcessEngine(
            source,
            self.name,
            python=interpreter(source, self.package, self.extra) if self.package else None,
            memory=self._memory,
            cache_bytes=self.cache_bytes,
            environment=self._environment,
        )

    def cache_bytes(self, options: Mapping[str, Any]) -> int | None:  # noqa: ARG002 - for overrides
        """Return the KV cache's size in the machine's memory from options in `model.json`, None for the default."""
        return 0


_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


def interpreter(source: ModelSource, package: str, extra: str) -> Path | None:
    """Return the interpreter that runs a model's engine, None for the server's.

    The model's parameter EXECUTION_ENV_PATH takes precedence over `--backend-config=<backend>,env-path=<folder>`. A
    relative path is resolved below the model's folder if the model names it, and in the server's working directory if
    the flag does. Raises ModelLoadError if the environment is missing, or if none is named and the server's lacks
    `package`, which the extra `extra` of Conch installs.
    """
    flag = f"--backend-config={source.config.backend},env-path"
    by_model, by_flag = source.config.parameters.get(PARAMETER, ""), source.settings.get("env-path", "")
    if not by_model and not by_flag:
        if importlib.util.find_spec(package) is None:
            raise ModelLoadError(
                f"backend '{source.config.backend}' needs the package '{package}': "
                f"{install_command(extra)}, or name an environment that has it by the parameter {PARAMETER} "
                f"or {flag}=<folder>"
            )
        return None
    if by_model:
        path = environment_path(by_model, source.directory)
    else:
        path = Path(by_flag.replace(_MODEL_DIRECTORY, str(source.directory))).absolute()
    for program in (path, path / "bin" / "python"):
        if program.is_file():
            return program
    named = f"{PARAMETER} '{path}'" if by_model else f"{flag}={by_flag}: '{path}'"
    if not path.exists():
        raise ModelLoadError(f"{named} does not exist; it must be a Python environment or its interpreter")
    raise ModelLoadError(f"{named} is not an interpreter and has no bin/python; it must be a Python environment")
