"""The closed list of causes to which each nanosecond of a request belongs: the table `causes.csv`."""

import csv
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple


class Cause(NamedTuple):
    """A cause: its name in tables, how a sentence says that time goes to it, and what helps.

    `{model}` is the model whose time it is.
    """

    label: str
    phrase: str
    remedy: str


def _read() -> Iterator[tuple[str, Cause]]:
    with Path(__file__).with_name("causes.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield row["cause"], Cause(row["label"], row["phrase"], row["remedy"])


CAUSES: Final = MappingProxyType(dict(_read()))

NESTED: Final = "step"
"""Time of a request that a nested request of the critical path explains: an ensemble's step, a BLS call."""

WAITS: Final = frozenset({"mates", "busy", "ahead", "large", "sequence"})
"""Causes that other instances, batches or delays would change."""
