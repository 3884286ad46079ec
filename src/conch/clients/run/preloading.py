"""Import the libraries of a pickled model while the server starts: scikit-learn takes longer than all the rest."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conch.server.backends.processes.fork_server import ForkServer

_FLAG = "--allow-pickled-models"
# Modules whose classes a pickle names. One that is compressed shows none.
_MODULES = re.compile(rb"(?:sklearn|xgboost|lightgbm)(?:\.\w+)+")
_HEAD_BYTES = 1 << 16


@contextmanager
def preloading(arguments: Sequence[str]) -> "Iterator[ForkServer | None]":
    """Run a fork server that imports what a pickle needs around a block, which gets it; None for other models.

    `arguments` are those of `conch run`, not parsed yet: the parser's own imports take time, too.
    """
    paths = map(Path, arguments) if _FLAG in arguments else ()
    modules = dict.fromkeys(module for path in paths for module in _modules(path))
    if not modules:
        yield None
        return
    from conch.base.errors import ModelLoadError
    from conch.server.backends.processes.fork_server import ForkServer
    from conch.server.backends.processes.launch import ChildEnvironment
    from conch.server.options.parser import OptionError, parse

    try:
        options = parse(["--model-repository=."], os.environ)
    except OptionError:  # the server reports it
        yield None
        return
    environment = ChildEnvironment(options.model_env_allow, options.model_env_deny)
    server = ForkServer(environment=environment, preload=("joblib", *modules))
    with suppress(ModelLoadError):  # the model reports it
        server.start()
    try:
        yield server
    finally:
        server.stop()


def _modules(path: Path) -> list[str]:
    """Return the modules of known libraries that a file names near its beginning; none of other arguments."""
    try:
        if not path.is_file():
            return []
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except (OSError, ValueError):  # a file that cannot be read, a text that is not a path
        return []
    return [module.decode() for module in _MODULES.findall(head)]
