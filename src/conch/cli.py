"""The `conch` command. Each sub-command is a function of its name, with `_` for `-`, imported when it runs."""

import os
import select
import signal
import sys
from codecs import lookup
from importlib import import_module
from io import TextIOWrapper

from conch.base.command_line.command_table import commands, tasks
from conch.base.command_line.say import folded
from conch.base.extras import install_command

_INTERRUPTED = 130
_BROKEN_PIPE = 141  # as of a program that SIGPIPE ended
_GLOBAL_FLAGS = ("--help", "--version")
_TRITONSERVER = "tritonserver"  # `conch serve` under the name that manifests and scripts for Triton have


def tritonserver() -> None:
    """Run the script of this name: `conch serve` with its arguments."""
    sys.argv.insert(1, _TRITONSERVER)
    main()


def main() -> None:
    """Run the command line of this process and exit with its status."""
    if os.getpid() == 1:
        from conch.server.commands.init_process import become_init

        become_init()
    _configure_encodings()
    arguments = sys.argv[1:]
    if arguments[:1] == [_TRITONSERVER]:  # of a container whose entry point is `conch`
        arguments[0] = "serve"
    if arguments and arguments[0] in commands():
        name = arguments[0]
        command = commands()[name]
        try:
            run = getattr(import_module(f"conch.{command.module}"), name.replace("-", "_"))
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # of __main__
                signal.signal(signal.SIGINT, signal.default_int_handler)
            status = run(arguments[1:])
            print(end="", flush=True)
        except ModuleNotFoundError as error:
            if not command.extra:
                raise
            remedy = install_command(command.extra)
            print(f"conch {name}: {error.name} is not installed; {remedy}", file=sys.stderr)
            status = 1
        except KeyboardInterrupt:  # before the command handles it, or at its end
            print(f"conch {name}: interrupted", file=sys.stderr)
            status = _INTERRUPTED
        except BrokenPipeError:
            if not _has_lost_reader():
                raise
            # Otherwise the interpreter writes the rest at exit, with a message.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = _BROKEN_PIPE
        sys.exit(status)
    _without_command(arguments or ["--help"])


def _has_lost_reader() -> bool:
    """Return whether the reader of stdout, such as head, has ended."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _configure_encodings() -> None:
    r"""Print characters that the terminal's encoding lacks as \u2713; read stdin as UTF-8 if its encoding is ASCII."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stdin is None:  # closed by the caller
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if isinstance(sys.stdin, TextIOWrapper) and lookup(sys.stdin.encoding).name == "ascii":
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")


def _without_command(arguments: list[str]) -> None:
    """Handle --help, --version and invalid commands. Exits the process."""
    from argparse import SUPPRESS, RawDescriptionHelpFormatter

    from conch.base.build_info import build_line
    from conch.base.command_line.command_parser import CommandParser

    about = "An inference server for Triton's model repositories, in Python."
    parser = CommandParser(
        "conch",
        usage="conch [-h] [--version] COMMAND …",
        description=folded(about, sys.stdout, 0),
        epilog=_command_list(),
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"conch {build_line()}")
    subparsers = parser.add_subparsers(metavar="command", required=True, help=SUPPRESS)
    for name in commands():
        subparsers.add_parser(name)
    if arguments[0] == "help":
        arguments = ["--help"]
    elif arguments[0].startswith("--") and not any(flag.startswith(arguments[0]) for flag in _GLOBAL_FLAGS):
        parser.error(f"the first argument must be a command: conch serve {arguments[0]} …")
    parser.parse_args(arguments)


def _command_list() -> str:
    """Return the commands by task, a line each, or more on a narrow terminal."""
    width = max(map(len, commands()))
    lines: list[str] = []
    for task, named in tasks().items():
        lines += [f"{task}:", *(f"  {name:<{width}}  {command.help}" for name, command in named.items()), ""]
    lines = [folded(line, sys.stdout, width + 4) for line in lines]
    return "\n".join([*lines, folded("conch COMMAND --help describes a command.", sys.stdout, 0)])
