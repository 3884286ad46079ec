"""Where `EXECUTION_ENV_PATH` leads."""

import os
from pathlib import Path

from conch.errors import ModelLoadError

PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


def environment_path(value: str, model_directory: Path) -> Path:
    """Return the path of an environment; a relative one starts at the model's folder.

    A path that names the model's folder by `$$TRITON_MODEL_DIRECTORY` must stay in it, but for symbolic links that the
    folder holds. Raises ModelLoadError.
    """
    path = Path(value.replace(_MODEL_DIRECTORY, str(model_directory)))
    if _MODEL_DIRECTORY in value:
        normal = os.path.normpath(path)
        if not Path(normal).is_relative_to(os.path.normpath(model_directory)):
            raise ModelLoadError(f"{PARAMETER} '{value}' leads out of the model's directory ({model_directory})")
    return path if path.is_absolute() else model_directory / path
