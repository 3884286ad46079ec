"""`auto_complete_config`: complete a configuration by the model's code, in a separate process that ends afterwards."""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

import orjson

from conch.base.errors import ModelLoadError
from conch.server.backends.base import ModelSource
from conch.server.backends.progress import reported
from conch.server.backends.python.custom_metrics import InstanceMetrics
from conch.server.backends.python.environment import Environments
from conch.server.backends.python.model_code import code_path
from conch.server.backends.python.model_process import ModelProcess
from conch.server.backends.python.settings import PythonSettings

_METHOD = b"auto_complete_config"
# A class that is imported or has a base class may have methods that this file does not mention.
_INHERITING = (b"TritonPythonModel", b"import *")
_PLAIN_CLASS = re.compile(rb"^class TritonPythonModel\s*(\(\s*(object)?\s*\))?\s*:", re.MULTILINE)


async def complete(source: ModelSource, settings: PythonSettings, environments: Environments) -> Mapping[str, Any]:
    """Return the configuration's document as the model completes it.

    Starts no process for a model whose code defines its class without the method. Raises ModelLoadError.
    """
    document = source.config.document
    code = await asyncio.to_thread(code_path(source).read_bytes)
    inherits = any(word in code for word in _INHERITING) and not _PLAIN_CLASS.search(code)
    if _METHOD not in code and not inherits:
        return document
    launcher = await environments.launcher(source)
    name = f"{source.config.name}_autocomplete"
    process = ModelProcess(name, source, settings, InstanceMetrics(), on_death=lambda _: None)
    try:
        await process.start(launcher)
        what = f"auto_complete_config of model '{source.config.name}' is still running"
        completed = await reported(name, what, process.complete(json.dumps(document)))
    finally:
        await process.kill()
    return _document(name, completed)


def _document(name: str, text: str) -> dict[str, Any]:
    """Return the completed configuration, which comes from the model's process. Raises ModelLoadError."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ModelLoadError(f"{name}: the process sent a configuration that is not valid JSON: {error}") from None
    if type(document) is not dict:
        raise ModelLoadError(f"{name}: the process sent a configuration that is not a JSON object")
    return document
