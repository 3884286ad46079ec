"""Where a Python model's code is."""

from pathlib import Path

from conch.backends.base import ModelSource
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
