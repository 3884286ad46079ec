"""`conch serve`: from the command line to a running server."""

import os
import sys

import typer

_USAGE_ERROR = 2
_START_FAILURE = 1


def serve(context: typer.Context) -> None:
    """Serve a model repository over HTTP and gRPC."""
    if "--help" in context.args or "-h" in context.args:
        from conch.cli.flag_help import print_help

        print_help()
        return
    from conch.options import OptionError, parse

    try:
        options = parse(context.args, os.environ)
    except OptionError as error:
        for problem in error.problems:
            print(f"conch serve: {problem}", file=sys.stderr)
        print("conch serve --help lists all flags.", file=sys.stderr)
        raise typer.Exit(_USAGE_ERROR) from None
    from conch.server import run

    try:
        status = run(options)
    except OSError as error:  # the log file, before there is a log to say it in
        print(f"conch serve: cannot start: {error}", file=sys.stderr)
        raise typer.Exit(_START_FAILURE) from None
    raise typer.Exit(status)
