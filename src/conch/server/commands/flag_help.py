"""The help of `conch serve`: its flags by group."""

from collections.abc import Iterable
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from conch.base.command_line.command_table import commands, examples_text
from conch.base.command_line.flags import Flag, Standing
from conch.server.options.server_options import FLAGS

# The groups of flags, in the order of the help.
_GROUPS = (
    "Server",
    "Model repository",
    "HTTP",
    "gRPC",
    "OpenAI",
    "Metrics",
    "Logging",
    "Backends",
    "Limits",
    "Incidents",
    "Tracing",
    "Response cache",
    "Rate limiter",
    "Memory and devices",
    "Cloud endpoints",
    "Deprecated",
)

_HELP = """\
Usage: conch serve --model-repository=DIRECTORY [FLAGS]

Serve a model repository over HTTP and gRPC. The flags are Triton's; a flag can be an environment variable \
too: --http-port is CONCH_HTTP_PORT."""


def print_help(console: Console | None = None) -> None:
    """Print all flags: supported ones by group, the others by the reason why they are not supported."""
    console = console or Console(highlight=False)
    console.print(_HELP, markup=False)
    for group, flags in grouped(flag for flag in FLAGS if flag.standing is Standing.SUPPORTED):
        console.print(Text(f"\n{group}", "bold"))
        for flag in flags:
            _print_entry(console, Text(usage(flag), "cyan"), _description(flag))
    console.print(Text(f"\n{Standing.IGNORED.value.capitalize()}", "bold"))
    others = sorted((flag for flag in FLAGS if flag.standing is Standing.IGNORED), key=lambda flag: flag.reason)
    for reason, members in groupby(others, key=lambda flag: flag.reason):
        names = " ".join(f"--{flag.name}" for flag in members)
        _print_entry(console, Text(names, "dim"), f"{reason[:1].upper()}{reason[1:]}.")
    console.print(examples_text("serve").rstrip(), markup=False)
    console.print(f"\nExit status: {commands()['serve'].statuses}", markup=False)


def _print_entry(console: Console, heading: Text, description: str) -> None:
    console.print(Padding(heading, (0, 0, 0, 2), expand=False))
    console.print(Padding(Text(description), (0, 0, 0, 8), expand=False))


def grouped(flags: Iterable[Flag]) -> Iterable[tuple[str, list[Flag]]]:
    """Return the groups in the order of the help, each with its flags."""
    ordered = sorted(flags, key=lambda flag: _GROUPS.index(flag.group))
    return ((group, list(members)) for group, members in groupby(ordered, key=lambda flag: flag.group))


def usage(flag: Flag) -> str:
    """Return a flag as it is written, with a placeholder for its value."""
    return f"--{flag.name}" if flag.bare else f"--{flag.name}={_placeholder(flag)}"


def _placeholder(flag: Flag) -> str:
    """Return `<port>` for `port`; forms such as `true|false` and `<a>,<b>` stay as they are."""
    metavar = flag.kind.metavar
    return metavar if "|" in metavar or "<" in metavar else f"<{metavar}>"


def _description(flag: Flag) -> str:
    notes = [f"also --{alias}" for alias in flag.aliases]
    if flag.repeatable:
        notes.append("repeatable")
    if not flag.bare and flag.default not in ("", ()):
        notes.append(f"default {written(flag.default)}")
    return flag.help + (f" [{'; '.join(notes)}]" if notes else "")


def written(value: object) -> str:
    """Return a default as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
