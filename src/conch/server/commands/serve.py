"""`conch serve`: parse the command line and run the server."""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conch.server.backends.processes.fork_server import ForkServer
    from conch.server.options.server_options import ServerOptions
    from conch.server.repository.namespaces import ModelId
    from conch.server.server import Server

_USAGE_ERROR = 2
_START_FAILURE = 1


def serve(arguments: Sequence[str]) -> int:
    """Serve a model repository over HTTP and gRPC until SIGTERM or SIGINT; return the exit status."""
    if "--help" in arguments or "-h" in arguments:
        from conch.server.commands.flag_help import print_help

        print_help()
        return 0
    from conch.server.options.parser import OptionError, parse

    try:
        options = parse(arguments, os.environ)
    except OptionError as error:
        for problem in error.problems:
            print(f"conch serve: {problem}", file=sys.stderr)
        print("conch serve --help lists all flags.", file=sys.stderr)
        return _USAGE_ERROR
    return run_server(options, arguments)


def run_server(
    options: "ServerOptions",
    arguments: Sequence[str] = (),
    ready: Callable[["Server"], None] | None = None,
    on_phase: Callable[["ModelId", str], None] | None = None,
    fork_server: "ForkServer | None" = None,
) -> int:
    """Run a server in this process until it is stopped; return the exit status.

    The values of secret flags in `arguments` are hidden; `ready` is called when the initial models are loaded,
    `on_phase` when a load is in a new phase, "" at its end. `fork_server` is one that has been started.
    """
    from conch.server.commands.process_secrets import hide_secrets, protect_memory

    hide_secrets(arguments)
    if not options.process_debugging:
        protect_memory()
    with nullcontext(fork_server) if fork_server is not None else _fork_server(options) as forks:
        # Imported objects are permanent: exclude them from garbage collection, which would scan them in vain.
        gc.disable()
        from conch.server.server import run

        gc.freeze()
        gc.enable()
        try:
            return run(options, forks, ready, on_phase)
        except OSError as error:  # of the log file, so it cannot be logged
            print(f"conch serve: cannot start: {error}", file=sys.stderr)
            return _START_FAILURE


@contextmanager
def _fork_server(options: "ServerOptions") -> Iterator["ForkServer"]:
    """Create the fork server. If Python models will be loaded, it starts while other modules are imported."""
    from conch.base.errors import ModelLoadError
    from conch.server.backends.processes.fork_server import ForkServer
    from conch.server.backends.processes.launch import ChildEnvironment

    server = ForkServer(environment=ChildEnvironment(options.model_env_allow, options.model_env_deny))
    loads_nothing = options.model_control_mode == "explicit" and not options.load_model
    if not loads_nothing and any(
        root.endswith(".py") or any(Path(root).glob(pattern))
        for root in (*options.model_repository, *filter(None, [options.model_dir]))
        for pattern in ("*/*/model.py", "*.joblib")
    ):
        with suppress(ModelLoadError):  # the first model that needs it reports the error
            server.start()
    try:
        yield server
    finally:
        server.stop()
