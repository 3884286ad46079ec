"""Configurations and other values of the vocabulary as marshal can write them: dataclasses, enumerations, mappings.

Both ends are the same program of the same user. A class is named by its module and its name, below `conch`.
"""

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from typing import Any

from conch.base import errors
from conch.base.errors import Code, ConchError

# The first item of a tuple that stands for an object: no value of a configuration is `...`.
_OBJECT = Ellipsis
_PLAIN = (str, int, float, bytes, bool, type(None))


def to_plain(value: Any) -> Any:
    """Return a value of plain types for a configuration, an option or a parameter; `of_plain` returns the value."""
    if type(value) in _PLAIN:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        members = {field.name: to_plain(getattr(value, field.name)) for field in fields(value) if field.init}
        return (_OBJECT, _name(value), members)
    if isinstance(value, Enum):
        return (_OBJECT, _name(value), to_plain(value.value))
    if isinstance(value, Mapping):
        return {to_plain(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return frozenset(map(to_plain, value))
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    return tuple(map(to_plain, value))


def of_plain(value: Any) -> Any:
    """Return the value that `to_plain` was given; named tuples and ranges as tuples."""
    if isinstance(value, tuple):
        if len(value) == 3 and value[0] is _OBJECT:
            value_class = _class(value[1])
            members = of_plain(value[2])
            return value_class(members) if issubclass(value_class, Enum) else value_class(**members)
        return tuple(map(of_plain, value))
    if isinstance(value, dict):
        return {of_plain(key): of_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(of_plain, value))
    return value


def describe_error(error: ConchError) -> tuple[Any, ...]:
    """Return an error as plain values: the names of its classes, its code and its attributes."""
    names = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, ConchError)]
    members = {name: value for name, value in vars(error).items() if type(value) in _PLAIN}
    return (tuple(names), error.code.value, members)


def restored_error(described: tuple[Any, ...]) -> ConchError:
    """Return the error that was described; of its first class that is known here."""
    names, code, members = described
    known = _errors()
    error = ConchError.__new__(next((known[name] for name in names if name in known), ConchError))
    error.args = (members["message"],)
    for name, value in members.items():
        setattr(error, name, value)
    if error.code.value != code:
        error.code = Code(code)
    return error


def _errors() -> dict[str, type[ConchError]]:
    classes: dict[str, type[ConchError]] = {}
    pending: list[type[ConchError]] = [errors.ConchError]
    while pending:
        kind = pending.pop()
        classes[kind.__name__] = kind
        pending += kind.__subclasses__()
    return classes


def _name(value: object) -> str:
    return f"{type(value).__module__}:{type(value).__name__}"


def _class(name: str) -> Any:
    module, _, kind = name.partition(":")
    if not module.startswith("conch."):
        raise ValueError(f"'{name}' is not a class of this package")
    return getattr(sys.modules.get(module) or import_module(module), kind)
