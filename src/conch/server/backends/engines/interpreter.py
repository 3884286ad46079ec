"""Choose the Python interpreter of an engine: the server's, or that of an environment with the engine's packages."""

import importlib.util
from pathlib import Path

from conch.base.errors import ModelLoadError
from conch.server.backends.base import ModelSource
from conch.server.backends.python.environment import PARAMETER, environment_path

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
                f"pip install 'conch-server[{extra}]', or name an environment that has it by the parameter {PARAMETER} "
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
