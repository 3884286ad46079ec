"""The `conch` command. Each sub-command is a module of its own, which imports what it needs when it runs."""

from typing import Annotated

import typer

from conch import __version__
from conch.cli.serve import serve

app = typer.Typer(
    name="conch",
    help="An inference server for Triton's model repositories, in Python.",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with the values of variables would show secrets.
    pretty_exceptions_enable=False,
    # Rich takes longer to import than everything else together.
    rich_markup_mode=None,
)

# Flags are not typer's business: `conch.options` reads Triton's whole command line, its --help included.
_RAW = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
app.command("serve", context_settings=_RAW)(serve)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"conch {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line of this process and exit with its status."""
    app(prog_name="conch")
