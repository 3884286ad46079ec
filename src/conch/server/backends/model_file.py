"""The path of a model version's file, for backends whose models are files."""

from pathlib import Path

from conch.base.errors import Code, ModelLoadError
from conch.server.backends.base import ModelSource


def model_path(source: ModelSource, default: str, instance: str) -> Path:
    """Return the path of the model: `default_model_filename` or `default`, which may be a folder that holds `default`.

    A folder is for models with separate files of weights. Raises ModelLoadError, which names the instance, if
    there is no such file.
    """
    path = source.version_directory / (source.config.default_model_filename or default)
    if path.is_dir():
        path /= default
    if not path.is_file():
        present = ", ".join(sorted(file.name for file in path.parent.iterdir())) if path.parent.is_dir() else ""
        hint = f"; the folder holds: {present}; 'default_model_filename' selects another file" if present else ""
        raise ModelLoadError(f"unable to find '{path}' for model instance '{instance}'{hint}", Code.UNAVAILABLE)
    return path
