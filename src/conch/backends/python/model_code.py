"""Where a Python model's code is, and what it is initialized with."""

import json
from pathlib import Path

from conch.backends.base import InstancePlan, ModelSource
from conch.errors import ModelLoadError

DEFAULT_FILENAME = "model.py"
_MAX_NAMES = 8


def code_path(source: ModelSource) -> Path:
    """Return the file with the model's class. Raises ModelLoadError if it is not there."""
    path = source.version_directory / (source.config.default_model_filename or DEFAULT_FILENAME)
    if path.suffix != ".py":
        raise ModelLoadError(f"Python model file '{path}' must end with '.py'")
    if not path.is_file():
        raise ModelLoadError(f"Python model file not found in '{path}'{_present(path)}")
    return path


def _present(path: Path) -> str:
    """Name the Python files that are there instead."""
    try:
        names = sorted(each.name for each in path.parent.iterdir() if each.suffix == ".py")[:_MAX_NAMES]
    except OSError:
        return ""
    return f"; the folder holds {', '.join(names)}" if names else ""


def initialize_arguments(plan: InstancePlan) -> dict[str, str]:
    """Return what `initialize` of a model is given, as in Triton."""
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
