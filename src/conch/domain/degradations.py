"""Degradations: how a server may run worse than its configuration asks, what each costs, and what cures it.

`degradations.csv` is the only list of them. Log, console table, metric, `conch doctor`, `conch ps`, response headers
and docs/degradations.md read it. A degradation is never silent: it is reported by its reason, with the detail of the
case.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal, TypeAlias, cast

from conch.base.files.tables import table_rows

Scope: TypeAlias = Literal["server", "model", "answer"]

# Header of an answer with the reasons that concern it.
HEADER = "X-Conch-Degraded"
STRICT_ALL = "true"


@dataclass(frozen=True, slots=True)
class DegradationReason:
    """One way to run worse than asked. `costs` and `cure` are one sentence each.

    `refusable`: known when the server or a model starts, so that --strict refuses the start. Others occur later.
    """

    id: str
    scope: Scope
    costs: str
    cure: str
    refusable: bool = False


@dataclass(frozen=True, slots=True)
class Degradation:
    """A reason that holds now: of `model`, "" for the whole server; `detail` is a sentence about this case."""

    reason: str
    detail: str
    model: str = ""

    def __str__(self) -> str:
        return f"{self.detail}; {reasons()[self.reason].cure}"


@cache
def reasons() -> Mapping[str, DegradationReason]:
    """Return all reasons by their ids, in the order in which pages list them."""
    return MappingProxyType(
        {
            row["id"]: DegradationReason(
                row["id"], cast("Scope", row["scope"]), row["costs"], row["cure"], refusable=row["at start"] == "yes"
            )
            for row in table_rows(__file__, "degradations.csv")
        }
    )
