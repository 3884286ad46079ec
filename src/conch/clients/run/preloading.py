"""Import a model's libraries while the server starts: scikit-learn and PyTorch take longer than all the rest."""

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
# Large libraries that Python code imports at its top. None of them starts threads or asks for GPUs in its import: a
# process that has done so must not be forked.
_IMPORTS = re.compile(rb"^(?:import|from)[ \t]+(torch|sklearn|scipy|pandas)\b", re.MULTILINE)
# Code may set variables for the libraries that it then imports.
_VARIABLES = re.compile(rb"\benviron\b|\bputenv\b")
# What loading a program of torch.export imports: half of its time is torch, and half the second of them.
_EXPORTED = ("conch_child.python.adapters.torch_model", "torch._export.serde.serialize")


@contextmanager
def preloading(arguments: Sequence[str]) -> "Iterator[ForkServer | None]":
    """Run a fork server that imports what a model needs around a block, which gets it; None if that is nothing large.

    `arguments` are those of `conch run`, not parsed yet: the parser's own imports take time, too.
    """
    pickles = _FLAG in arguments
    modules = dict.fromkeys(module for text in arguments for module in _modules(Path(text), pickles=pickles))
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
    server = ForkServer(environment=environment, preload=tuple(modules))
    with suppress(ModelLoadError):  # the model reports it
        server.start()
    try:
        yield server
    finally:
        server.stop()


def _modules(path: Path, *, pickles: bool) -> Sequence[str]:
    """Return what an exported program or Python code needs, or the modules that a pickle names near its beginning.

    Empty for other arguments.
    """
    try:
        if not path.is_file():
            return ()
        if path.suffix == ".pt2":
            return _EXPORTED
        if not pickles and path.suffix != ".py":
            return ()
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except (OSError, ValueError):  # a file that cannot be read, a text that is not a path
        return ()
    if path.suffix == ".py":
        return () if _VARIABLES.search(head) else [name.decode() for name in _IMPORTS.findall(head)]
    modules = [name.decode() for name in _MODULES.findall(head)]
    return ("joblib", *modules) if modules else ()
