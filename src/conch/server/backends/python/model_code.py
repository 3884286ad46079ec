"""The code that runs a Python model, and the arguments of its `initialize`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conch.base.errors import ModelLoadError
from conch.server.backends.base import InstancePlan, ModelSource

DEFAULT_FILENAME = "model.py"
_MAX_NAMES = 8


@dataclass(frozen=True, slots=True)
class Adapter:
    """A module of `conch_child` whose `TritonPythonModel` runs a model in place of a `model.py`.

    `arguments` are added to those of its `initialize`.
    """

    module: str
    arguments: Mapping[str, str]


def code_path(source: ModelSource) -> Path:
    """Return the file with the model's class. Raises ModelLoadError if it does not exist."""
    path = source.version_directory / (source.config.default_model_filename or DEFAULT_FILENAME)
    if path.suffix != ".py":
        raise ModelLoadError(f"Python model file '{path}' must end with '.py'")
    if not path.is_file():
        raise ModelLoadError(f"Python model file not found in '{path}'{_present(path)}")
    return path


def _present(path: Path) -> str:
    """Return a hint that names the Python files that exist instead."""
    try:
        names = sorted(file.name for file in path.parent.iterdir() if file.suffix == ".py")[:_MAX_NAMES]
    except OSError:
        return ""
    return f"; the folder holds {', '.join(names)}" if names else ""


def initialize_arguments(plan: InstancePlan) -> dict[str, str]:
    """Return Triton's argument of `initialize` of a model."""
    source = plan.source
    return {
        "model_config": json.dumps(source.config.document),
        "model_instance_kind": plan.kind.value.removeprefix("KIND_"),
        "model_instance_name": plan.name,
        "model_instance_device_id": str(plan.device_id),
        "model_repository": str(source.directory),
        "model_version": str(source.version),
        "model_name": source.config.name,
    }
