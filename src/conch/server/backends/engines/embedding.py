"""Embedding models of engines' libraries. They execute batches by instances, as nothing is generated.

Each instance is a process of the python backend that runs `conch_child/python/adapters/embedding_model.py`.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from conch.domain.files.model_folder import read_json_object
from conch.server.backends.base import Instance, InstancePlan, ModelSource
from conch.server.backends.engines.interpreter import interpreter
from conch.server.backends.engines.tensors import embedding_document
from conch.server.backends.processes.fork_server import ForkServer
from conch.server.backends.processes.sandbox import SETTINGS as SANDBOX_SETTINGS
from conch.server.backends.python.backend import PythonBackend
from conch.server.backends.python.environment import PARAMETER
from conch.server.backends.python.model_code import Adapter

_ADAPTER = "conch_child.python.adapters.embedding_model"
# Settings of an engine's backend that also apply to embedding models.
_SETTINGS = ("stub-timeout-seconds", *SANDBOX_SETTINGS)


class EmbeddingModels:
    """Creates an engine backend's embedding models. `package` is the import name of the library."""

    def __init__(self, package: str, fork_server: ForkServer | None) -> None:
        self._package = package
        self._fork_server = fork_server
        self._python: PythonBackend | None = None

    def accepts(self, source: ModelSource) -> bool:
        """Return whether a version's model.json has `"task": "embed"`, or vLLM's `"runner": "pooling"`."""
        options = read_json_object(source.version_directory / "model.json")
        return options.get("task") == "embed" or options.get("runner") == "pooling"

    def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Return the configuration with an embedding's tensors. Raises ConfigError."""
        folder = source.version_directory
        config = read_json_object(
            folder / str(read_json_object(folder / "model.json").get("model", ".")) / "config.json"
        )
        size = config.get("hidden_size")
        return embedding_document(source.config.document, size if isinstance(size, int) else -1)

    def instance(self, plan: InstancePlan) -> Instance:
        """Create an instance. Raises ModelLoadError if its packages are not installed."""
        if self._python is None:
            self._python = PythonBackend(self._fork_server)
        source = plan.source
        program = interpreter(source, self._package, self._package)
        parameters = {name: value for name, value in source.config.parameters.items() if name != PARAMETER}
        if program is not None:
            parameters[PARAMETER] = str(program.parent.parent)
        config = replace(source.config, parameters=parameters)
        task = {"package": self._package, "directory": str(source.version_directory)}
        adapter = partial(Adapter, _ADAPTER, {"embedding": json.dumps(task)})
        settings = {key: source.settings[key] for key in _SETTINGS if key in source.settings}
        return self._python.instance(replace(plan, source=replace(source, config=config, settings=settings)), adapter)

    async def stop(self) -> None:
        """Release the processes' shared resources."""
        if self._python is not None:
            await self._python.stop()
