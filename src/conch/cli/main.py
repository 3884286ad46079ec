"""The `conch` command. Each sub-command is a function in a module, both of its name, imported when it is run."""

import sys
from codecs import lookup
from importlib import import_module
from io import TextIOWrapper

# Sub-command → what it does. It reads its own arguments and returns the exit status.
_COMMANDS = {
    "chat": "talk with a model in the terminal, over the OpenAI API",
    "check": "find what is wrong with a model repository, without starting it",
    "client": "send a file of prompts to a server; conch client --help lists the commands",
    "engine": "say which GPUs a language model fits; conch engine plan --help lists the flags",
    "repo": "add models, list, show, pack and pull repositories; conch repo --help lists the commands",
    "serve": "serve a model repository over HTTP and gRPC; conch serve --help lists the flags",
}

_OWN = ("--help", "--version")  # flags of the command itself; the others are a sub-command's


def main() -> None:
    """Run the command line of this process and exit with its status."""
    _escape_what_the_terminal_cannot_show()
    arguments = sys.argv[1:]
    if arguments and arguments[0] in _COMMANDS:
        name = arguments[0]
        sys.exit(getattr(import_module(f"conch.cli.{name}"), name)(arguments[1:]))
    _explain(arguments or ["--help"])


def _escape_what_the_terminal_cannot_show() -> None:
    r"""Print characters outside of the terminal's encoding as \u2713; read UTF-8 where it says it is ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, TextIOWrapper) and lookup(sys.stdin.encoding).name == "ascii":
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")


def _explain(arguments: list[str]) -> None:
    """Answer what is no sub-command: --help, --version, or a mistake. Ends the process."""
    from conch.build_info import build_line
    from conch.cli.command_parser import CommandParser

    parser = CommandParser("conch", description="An inference server for Triton's model repositories, in Python.")
    parser.add_argument("--version", action="version", version=f"conch {build_line()}")
    commands = parser.add_subparsers(title="commands", metavar="command", required=True)
    for name, purpose in _COMMANDS.items():
        commands.add_parser(name, help=purpose)
    if arguments[0] == "help":
        arguments = ["--help"]
    elif arguments[0].startswith("--") and not any(each.startswith(arguments[0]) for each in _OWN):
        parser.error(f"a command must come first, as in: conch serve {arguments[0]} …")
    parser.parse_args(arguments)
