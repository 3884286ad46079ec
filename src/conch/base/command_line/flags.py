"""Flags that fields of dataclasses declare, for all commands.

A field declares name, type, default and help of its flag with `flag_field`; `declared_flags` returns them.
`conch serve` has a strict parser for them; other commands use argparse: `CommandParser.add_flags` adds the flags, and
`settings_of` makes the dataclass of what was given.
"""

from argparse import Namespace
from dataclasses import Field, dataclass, field, fields
from enum import Enum
from typing import Any, Literal, TypeVar, get_args, get_origin

from conch.base.command_line.flag_values import BOOLEAN, TEXT, ValueKind, choice

_Settings = TypeVar("_Settings")

ENVIRONMENT_PREFIX = "CONCH_"


class Standing(Enum):
    """What the server does with a flag."""

    SUPPORTED = "supported"
    IGNORED = "accepted, without effect"  # tunes a mechanism that this server does not have


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag, as parser, help and documentation need it."""

    name: str  # without the dashes
    group: str
    help: str
    kind: ValueKind
    default: object
    repeatable: bool = False
    bare: bool = False  # takes no value, as getopt's no_argument
    aliases: tuple[str, ...] = ()
    separator: str = ","  # between the values of a repeatable flag in its environment variable
    standing: Standing = Standing.SUPPORTED
    reason: str = ""  # why it is ignored
    replaced_by: str = ""  # the repeatable flag that receives the value of this deprecated one

    @property
    def attribute(self) -> str:
        """The name as a Python identifier."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The flag's environment variable."""
        return ENVIRONMENT_PREFIX + self.attribute.upper()


def flag_field(
    default: object,
    group: str,
    text: str,
    kind: ValueKind | None = None,
    *,
    name: str = "",
    repeatable: bool = False,
    bare: bool = False,
    aliases: tuple[str, ...] = (),
    separator: str = ",",
) -> Any:
    """Return a dataclass field that declares a flag, by default with the field's name.

    Without a `kind` the field's type says what values are: true or false, the words of a Literal, or else texts.
    A repeatable flag collects its values in a tuple, or a dict if `default` is one. A bare flag whose default is True
    makes it False. Without a default, which is `dataclasses.MISSING`, the flag is required.
    """
    details = {"name": name, "group": group, "help": text, "kind": kind, "repeatable": repeatable, "bare": bare}
    metadata = {"flag": {**details, "aliases": aliases, "separator": separator}}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_field(settings: type[_Settings]) -> Any:
    """Return a dataclass field for settings whose fields declare flags themselves."""
    return field(default_factory=settings, metadata={"settings": settings})


def declared_flags(settings: Any) -> tuple[Flag, ...]:
    """Return the flags that the fields of a dataclass declare, in their order."""
    flags: list[Flag] = []
    for item in fields(settings):
        if nested := item.metadata.get("settings"):
            flags += declared_flags(nested)
        elif details := item.metadata.get("flag"):
            default = {} if callable(item.default_factory) else item.default
            kind = details["kind"] or _kind_of(item.type)
            flags.append(Flag(default=default, **{**details, "name": _flag_name(item), "kind": kind}))
    return tuple(flags)


def settings_of(settings: type[_Settings], given: Namespace, **more: object) -> _Settings:
    """Return a dataclass with the values of the flags that were given, and of `more`; other fields have defaults."""
    values = dict(more)
    for item in fields(settings):  # type: ignore[arg-type]
        if nested := item.metadata.get("settings"):
            values.setdefault(item.name, settings_of(nested, given))
        elif details := item.metadata.get("flag"):
            attribute = _flag_name(item).replace("-", "_")
            if hasattr(given, attribute):
                value = getattr(given, attribute)
                collection = dict if callable(item.default_factory) else tuple
                values[item.name] = collection(value) if details["repeatable"] else value
    return settings(**values)


def _flag_name(item: Field[Any]) -> str:
    return item.metadata["flag"]["name"] or item.name.replace("_", "-")


def _kind_of(annotation: Any) -> ValueKind:
    """Return the kind of values of a field's type."""
    if get_origin(annotation) is Literal:
        return choice(*get_args(annotation))
    return BOOLEAN if annotation is bool else TEXT
