"""A field of the options that is a flag."""

from dataclasses import field
from typing import Any

from conch.options.flag_values import ValueKind


def flag_field(
    default: object,
    group: str,
    text: str,
    kind: ValueKind,
    *,
    repeatable: bool = False,
    bare: bool = False,
    aliases: tuple[str, ...] = (),
    separator: str = ",",
) -> Any:
    """Make a field that is a flag."""
    details = {"group": group, "help": text, "kind": kind, "repeatable": repeatable, "bare": bare}
    return field(default=default, metadata={**details, "aliases": aliases, "separator": separator})
