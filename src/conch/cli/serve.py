"""`conch serve`: from the command line to a running server."""

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conch.backends.processes.fork_server import ForkServer
    from conch.options.server_options import ServerOptions

_USAGE_ERROR = 2
_START_FAILURE = 1


def serve(arguments: Sequence[str]) -> int:
    """Serve a model repository over HTTP and gRPC until told to stop; return the exit status."""
    if "--help" in arguments or "-h" in arguments:
        from conch.cli.flag_help import print_help

        print_help()
        return 0
    from conch.options.parser import OptionError, parse

    try:
        options = parse(arguments, os.environ)
    except OptionError as error:
        for problem in error.problems:
            print(f"conch serve: {problem}", file=sys.stderr)
        print("conch serve --help lists all flags.", file=sys.stderr)
        return _USAGE_ERROR
    from conch.cli.process_secrets import hide_secrets, protect_memory

    hide_secrets(arguments)
    if not options.process_debugging:
        protect_memory()
    with _fork_server(options) as fork_server:
        # All of what is imported stays: the collector would walk through it again and again and find nothing.
        gc.disable()
        from conch.server import run

        gc.freeze()
        gc.enable()
        try:
            return run(options, fork_server)
        except OSError as error:  # the log file, before there is a log to say it in
            print(f"conch serve: cannot start: {error}", file=sys.stderr)
            return _START_FAILURE


@contextmanager
def _fork_server(options: "ServerOptions") -> Iterator["ForkServer"]:
    """Make the fork server. If there are Python models to come, it starts while the rest of the program is imported."""
    from conch.backends.processes.environment import ChildEnvironment
    from conch.backends.processes.fork_server import ForkServer
    from conch.errors import ModelLoadError

    server = ForkServer(environment=ChildEnvironment(options.model_env_allow, options.model_env_deny))
    waits_for_orders = options.model_control_mode == "explicit" and not options.load_model
    if not waits_for_orders and any(any(Path(root).glob("*/*/model.py")) for root in options.model_repository):
        with suppress(ModelLoadError):  # the first model that needs it says so again
            server.start()
    try:
        yield server
    finally:
        server.stop()
