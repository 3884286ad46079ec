"""All commands, from `commands.csv`: where each is, what it does, examples, and what its exit statuses mean.

`conch`, the help of each command, completion and docs/reference/commands.md read this table.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

_STATUSES = "0 done; 1 failed; 2 invalid arguments; 130 interrupted"


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its module below `conch`, a line of help, and examples (none here, where its own help has some).

    `extra` is the extra that has the packages it needs.
    """

    module: str
    help: str
    examples: tuple[str, ...] = ()
    statuses: str = _STATUSES
    extra: str = ""


@cache
def tasks() -> Mapping[str, Mapping[str, Command]]:
    """Return task → name → command. A command is a function of its name, with `_` for `-`."""
    table: dict[str, dict[str, Command]] = {}
    with Path(__file__).with_name("commands.csv").open(encoding="utf-8", newline="") as file:
        for task, name, module, extra, text, statuses, *examples in list(csv.reader(file))[1:]:
            command = Command(module, text, tuple(filter(None, examples)), statuses or _STATUSES, extra)
            table.setdefault(task, {})[name] = command
    return MappingProxyType(table)


@cache
def commands() -> Mapping[str, Command]:
    """Return the commands by name."""
    return MappingProxyType({name: command for task in tasks().values() for name, command in task.items()})


def examples_text(name: str) -> str:
    """Return the examples of a command for its help, "" without any."""
    examples = commands()[name].examples if name in commands() else ()
    return "\n".join(["", "examples:", *(f"  {example}" for example in examples), ""]) if examples else ""
