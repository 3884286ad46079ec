"""`conch completion`: print the script with which bash, zsh or fish complete commands, flags and values."""

from argparse import Action, ArgumentParser, _SubParsersAction
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import shtab

from conch.base.command_line.command_parser import DESCRIBE, CommandParser, ParserRequested
from conch.base.command_line.command_table import commands
from conch.base.command_line.flag_values import BOOLEAN
from conch.base.command_line.flags import Standing
from conch.server.options.server_options import FLAGS

_SHELLS = ("bash", "zsh", "fish")
_FILES = ("FILE", "PATH", "X", "SOURCE", "MODEL", "<path>")
_FOLDERS = ("DIR", "FOLDER")


def completion(arguments: Sequence[str]) -> int:
    """Print the script of a shell; return the exit status."""
    parser = CommandParser(
        "conch completion", description="Print the script that completes commands, flags and values in a shell."
    )
    parser.add_argument("shell", choices=_SHELLS)
    given = parser.parse_args(arguments)
    print(script(given.shell))
    return 0


def script(shell: str) -> str:
    """Return the script of a shell: bash, zsh or fish."""
    text: str = shtab.complete(_whole_parser(), shell)
    return text


def _whole_parser() -> ArgumentParser:
    """Return one parser with those of all commands below it."""
    whole = CommandParser("conch", description="An inference server for Triton's model repositories, in Python.")
    whole.add_argument("--version", action="store_true", help="print the version")
    subparsers = whole.add_subparsers(metavar="command")
    for name, command in commands().items():
        subparsers.add_parser(name, help=command.help)
        parser = parser_of(name)
        _complete_files(parser)
        subparsers.choices[name] = parser  # type: ignore[assignment]
    return whole


def parser_of(name: str) -> ArgumentParser:
    """Return the parser of a command."""
    if name == "serve":
        return _serve_parser()
    if name == "health":  # it imports little, and not argparse
        parser = CommandParser("conch health")
        for flag in ("--live", "--metadata"):
            parser.add_argument(flag, action="store_true")
        parser.add_argument("--port")
        return parser
    run = getattr(import_module(f"conch.{commands()[name].module}"), name.replace("-", "_"))
    try:
        run([DESCRIBE])
    except ParserRequested as requested:
        return requested.parser
    raise AssertionError(f"conch {name} parses its arguments without CommandParser")


def _serve_parser() -> ArgumentParser:
    """Return a parser with the flags of `conch serve`, which has a strict parser for them."""
    parser = CommandParser("conch serve")
    for flag in FLAGS:
        if flag.standing is not Standing.SUPPORTED:
            continue
        metavar = flag.kind.metavar
        if flag.bare:
            parser.add_argument(f"--{flag.name}", action="store_true", help=flag.help.replace("%", "%%"))
            continue
        words = ("true", "false") if flag.kind is BOOLEAN else metavar.split("|")
        action = parser.add_argument(f"--{flag.name}", help=flag.help.replace("%", "%%"))
        if len(words) > 1 and not any(character in metavar for character in "<,=…"):
            action.choices = words
        elif metavar == "path":
            action.metavar = "PATH"
    return parser


def _complete_files(parser: ArgumentParser) -> None:
    """Let the shell complete paths where an argument takes some."""
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for inner in action.choices.values():
                _complete_files(inner)
        elif action.metavar in _FILES or (not action.option_strings and action.nargs in ("*", "+")):
            _set_completion(action, shtab.FILE)
        elif action.metavar in _FOLDERS:
            _set_completion(action, shtab.DIRECTORY)


def _set_completion(action: Action, how: Any) -> None:
    action.complete = how  # type: ignore[attr-defined]
