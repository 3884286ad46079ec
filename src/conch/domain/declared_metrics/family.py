"""A declared family as a value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from conch.domain.declared_metrics.facts import RequestFacts

DEFAULT_MAX_SERIES = 1000

DeclaredKind: TypeAlias = Literal["counter", "gauge", "histogram"]
Evaluate: TypeAlias = Callable[[RequestFacts], Any]


@dataclass(frozen=True, slots=True)
class DeclaredFamily:
    """One family: what is added to a counter, observed by a histogram, or set to a gauge for each request.

    `in_flight`: the gauge is increased when a request begins and decreased by the same amount when it ends.
    """

    name: str
    kind: DeclaredKind
    help: str
    value: Evaluate
    where: Evaluate | None = None  # only requests for which it is true
    labels: Mapping[str, Evaluate] = field(default_factory=dict)
    in_flight: bool = False
    buckets: tuple[float, ...] = ()  # upper bounds, the last being infinity
    max_series: int = DEFAULT_MAX_SERIES
