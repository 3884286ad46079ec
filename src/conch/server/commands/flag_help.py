"""Print the help of `conch serve`, and generate the reference page of its flags."""

from collections.abc import Iterable
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from conch.base.flags import Flag, Standing
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

_PAGE = """\
# Flags of `conch serve`

Triton's command line under Triton's names. `--flag=value` and `--flag value` mean the same; a flag that is not listed
here is an error. Every flag can be given as an environment variable too: `--http-port` is `CONCH_HTTP_PORT`. A flag on
the command line beats its variable; for a repeatable flag it replaces the variable's whole list.

In Kubernetes, a Service named `conch-http` would make pods see a variable `CONCH_HTTP_PORT` of another meaning; the
server refuses it by name. `enableServiceLinks: false` in the pod keeps such variables out.

A flag is one of three:

- **supported**;
- **accepted, without effect**: it tunes something that this server does not have, and the log says so;
- **refused**: it would change what clients get. A value that asks for what happens anyway is accepted.
"""


def print_help(console: Console | None = None) -> None:
    """Print all flags: supported ones by group, the others by the reason why they are not supported."""
    console = console or Console(highlight=False)
    console.print(_HELP, markup=False)
    for group, flags in _grouped(flag for flag in FLAGS if flag.standing is Standing.SUPPORTED):
        console.print(Text(f"\n{group}", "bold"))
        for flag in flags:
            _print_entry(console, Text(_usage(flag), "cyan"), _description(flag))
    for standing in (Standing.IGNORED, Standing.REFUSED):
        console.print(Text(f"\n{standing.value.capitalize()}", "bold"))
        others = sorted((flag for flag in FLAGS if flag.standing is standing), key=lambda flag: flag.reason)
        for reason, members in groupby(others, key=lambda flag: flag.reason):
            names = " ".join(f"--{flag.name}" for flag in members)
            _print_entry(console, Text(names, "dim"), f"{reason[:1].upper()}{reason[1:]}.")


def reference() -> str:
    """Return the reference page of all flags as Markdown."""
    parts = [_PAGE]
    for group, flags in _grouped(FLAGS):
        parts.append(f"## {group}\n\n| Flag | Default | Standing | Meaning |\n|---|---|---|---|")
        parts += [_row(flag) for flag in flags]
        parts.append("")
    return "\n".join(parts)


def _print_entry(console: Console, heading: Text, description: str) -> None:
    console.print(Padding(heading, (0, 0, 0, 2), expand=False))
    console.print(Padding(Text(description), (0, 0, 0, 8), expand=False))


def _grouped(flags: Iterable[Flag]) -> Iterable[tuple[str, list[Flag]]]:
    ordered = sorted(flags, key=lambda flag: _GROUPS.index(flag.group))
    return ((group, list(members)) for group, members in groupby(ordered, key=lambda flag: flag.group))


def _usage(flag: Flag) -> str:
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
        notes.append(f"default {_written(flag.default)}")
    return flag.help + (f" [{'; '.join(notes)}]" if notes else "")


def _row(flag: Flag) -> str:
    notes = [f"also `--{alias}`" for alias in flag.aliases]
    if flag.repeatable:
        notes.append(f"repeatable; `{flag.separator}` between values in the environment")
    meaning = flag.help + (f" ({'; '.join(notes)})" if notes else "")
    default = f"`{_written(flag.default)}`" if flag.default not in ("", ()) else ""
    # Outside of backticks, Markdown treats `<model>` as HTML.
    cells = (f"`{_usage(flag)}`", default, flag.standing.value, meaning.replace("<", "&lt;"))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    print(reference(), end="")
