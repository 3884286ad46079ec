"""The closed list of causes to which each nanosecond of a request belongs: the table `causes.csv`."""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from conch.base.files.tables import table_rows


class Cause(NamedTuple):
    """A cause: its name in tables, how a sentence says that time goes to it, and what helps.

    `{model}` is the model whose time it is. In charts it is a character, or a letter where only ASCII is shown, in a
    style of the terminal, or the number of a color of pages.
    """

    label: str
    character: str
    letter: str
    style: str
    color: int
    phrase: str
    remedy: str


def _read() -> Iterator[tuple[str, Cause]]:
    for row in table_rows(__file__, "causes.csv"):
        values: dict[str, Any] = {**row, "color": int(row["color"])}
        yield values.pop("cause"), Cause(**values)


CAUSES: Final = MappingProxyType(dict(_read()))

NESTED: Final = "step"
"""Time of a request that a nested request of the critical path explains: an ensemble's step, a BLS call."""

WAITS: Final = frozenset({"mates", "busy", "ahead", "large", "sequence"})
"""Causes that other instances, batches or delays would change."""
