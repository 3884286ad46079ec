"""The interpreter that runs an engine: the server's own, or one of an environment that holds its packages."""

import importlib.util
from pathlib import Path

from conch.backends.base import ModelSource
from conch.errors import ModelLoadError

PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


def interpreter(source: ModelSource, package: str, extra: str) -> Path | None:
    """Return the interpreter that a model's engine runs in, None for the server's own.

    It is that of the environment which the parameter EXECUTION_ENV_PATH of the model names, or else the setting
    `--backend-config=<backend>,env-path=<folder>`. Raises ModelLoadError if there is none, or if the server's own has
    not got `package`, which `extra` brings.
    """
    value = source.config.parameters.get(PARAMETER) or source.settings.get("env-path", "")
    if not value:
        if importlib.util.find_spec(package) is None:
            raise ModelLoadError(
                f"backend '{source.config.backend}' needs the package '{package}': "
                f"pip install 'conch-server[{extra}]', or an environment of its own that has it, "
                f"by the parameter {PARAMETER} or --backend-config={source.config.backend},env-path=<folder>"
            )
        return None
    path = Path(value.replace(_MODEL_DIRECTORY, str(source.directory)))
    if not path.is_absolute():
        path = source.directory / path
    for program in (path, path / "bin" / "python"):
        if program.is_file():
            return program
    raise ModelLoadError(f"{PARAMETER} '{path}' is no interpreter and has no bin/python: it must be an environment")
