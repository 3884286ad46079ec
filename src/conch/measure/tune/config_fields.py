"""Dimensions that are any field of a configuration, by its path: `field:optimization.graph.level`."""

from typing import Any

from conch.measure.tune.space import Value

FIELD_PREFIX = "field:"


def write_field(document: dict[str, Any], path: str, value: Value) -> None:
    """Write a value at a path of names; a list on the way is entered in all its elements.

    Raises ValueError if the path leads through a scalar.
    """
    first, _, rest = path.partition(".")
    if not rest:
        document[first] = list(value) if isinstance(value, tuple) else value
        return
    inner = document.setdefault(first, {})
    for each in inner if isinstance(inner, list) else [inner]:
        if not isinstance(each, dict):
            raise ValueError(f"'{first}' of '{path}' is not a message")
        write_field(each, rest, value)


def read_field(document: dict[str, Any], path: str) -> Value:
    """Return the value at a path, of the first element where a list is on the way; None if it has none."""
    value: Any = document
    for name in path.split("."):
        value = value[0] if isinstance(value, list) and value else value
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, list):
        return tuple(value)
    return None if isinstance(value, dict) else value
