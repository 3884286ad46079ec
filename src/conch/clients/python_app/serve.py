"""`conch.serve`: serve the models of the script that calls it."""

import os
import sys
from pathlib import Path

from conch.base.errors import ConfigError


def serve(*, port: int = 8000, host: str = "127.0.0.1", reload: bool = False) -> None:
    """Serve the models that this script declares, as `conch run SCRIPT` does. Does not return.

    Does nothing where the script is imported as a module, which the processes of its models do. With `reload`, the
    models are loaded again when a source file changes. If the port is in use, the next free one is printed. Another
    `host` than this machine needs `conch run --api-key-file`. Raises ConfigError outside of a script.
    """
    caller = sys._getframe(1).f_globals
    if caller.get("__name__") != "__main__":
        return
    script = caller.get("__file__")
    if not script:
        raise ConfigError("conch.serve() needs a script: models are imported from its file by other processes")
    command = [sys.executable, "-m", "conch", "run", str(Path(script).resolve()), "--serve"]
    command += [f"--address={host}", f"--port={port}", *(["--reload"] if reload else [])]
    sys.stdout.flush()
    # In place of this process, so that the script's own copy of the models takes no memory.
    os.execv(sys.executable, command)  # noqa: S606
