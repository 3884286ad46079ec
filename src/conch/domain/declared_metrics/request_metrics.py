"""Evaluate declared metrics for each request, and expose them."""

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import isfinite
from typing import TypeAlias

from conch.base.errors import ConchError
from conch.domain.declared_metrics.declaration import DeclaredFamily
from conch.domain.declared_metrics.request_facts import ModelIdentity, PromptFacts, RequestFacts
from conch.domain.exposition import Buckets, Family, Labels, Point
from conch.domain.generation import GenerationRequest, Usage
from conch.domain.request import InferRequest, InferResponse

_log = logging.getLogger(__name__)

_MAX_LABEL_CHARACTERS = 256


class _Series:
    """One series: a number, and for a histogram the counts of its buckets."""

    __slots__ = ("counts", "value")

    def __init__(self, buckets: int) -> None:
        self.value = 0.0  # a histogram's sum
        self.counts = [0] * buckets


_Held: TypeAlias = list[tuple[_Series, float]]


class _Collected:
    """The series of one family, and how often an expression failed or there were too many series."""

    def __init__(self, family: DeclaredFamily) -> None:
        self.family = family
        self._labels = tuple(family.labels.values())
        self.series: dict[tuple[str, ...], _Series] = {}
        self.errors = 0
        self.overflows = 0

    def add(self, request: RequestFacts) -> tuple[_Series, float] | None:
        """Evaluate the expressions for a request. Returns the series and what was added to it, None for nothing."""
        family = self.family
        try:
            if family.where is not None and not family.where(request):
                return None
            value = float(family.value(request))
            if not isfinite(value) or (value < 0 and family.kind == "counter"):
                raise ValueError(f"the value {value} cannot be added to a {family.kind}")
            series = self._find(tuple([_label(label(request)) for label in self._labels]))
        except Exception as error:  # also of an operator's function
            self.errors += 1
            if self.errors == 1:
                _log.warning(
                    'custom metric "%s": %s: %s; the request is omitted', family.name, type(error).__name__, error
                )
            return None
        if series is None:
            return None
        if family.kind == "gauge" and not family.in_flight:
            series.value = value
        else:
            series.value += value
        if family.buckets:
            series.counts[bisect_left(family.buckets, value)] += 1
        return series, value

    def _find(self, labels: tuple[str, ...]) -> _Series | None:
        series = self.series.get(labels)
        if series is None:
            if len(self.series) >= self.family.max_series:
                self.overflows += 1
                if self.overflows == 1:
                    _log.warning(
                        'custom metric "%s" has reached max_series (%d): requests with further labels are omitted',
                        self.family.name,
                        self.family.max_series,
                    )
                return None
            series = self.series[labels] = _Series(len(self.family.buckets))
        return series

    def exposition(self) -> Family:
        """Return the family of a scrape."""
        family = self.family
        names = list(family.labels)
        points = [
            Point(self._value(series), Labels(dict(zip(names, labels, strict=True))))
            for labels, series in self.series.items()
        ]
        return Family(family.name, family.kind, family.help, points)

    def _value(self, series: _Series) -> float | Buckets:
        if not self.family.buckets:
            return series.value
        return Buckets(self.family.buckets, list(accumulate(series.counts)), series.value)


class DeclaredMetrics:
    """The declared metrics of a server. Belongs to the event loop's thread."""

    def __init__(self, families: Sequence[DeclaredFamily]) -> None:
        self.names = frozenset(family.name for family in families)
        self._collected = [_Collected(family) for family in families]
        self.at_begin = [collected for collected in self._collected if collected.family.in_flight]
        self.at_end = [collected for collected in self._collected if not collected.family.in_flight]
        self._held: dict[int, _Held] = {}  # by request: what its end takes back

    def families(self) -> Iterator[Family]:
        """Yield the families of a scrape."""
        for collected in self._collected:
            yield collected.exposition()
        for metric, counts in (
            ("conch_custom_metric_overflows_total", [collected.overflows for collected in self._collected]),
            ("conch_custom_metric_errors_total", [collected.errors for collected in self._collected]),
        ):
            labelled = zip(self._collected, counts, strict=True)
            yield Family.of(metric, [Point(count, {"family": collected.family.name}) for collected, count in labelled])

    def begin(self, key: int, request: RequestFacts) -> None:
        """Add a request that begins to the gauges of requests in flight. `key` is its own until its end."""
        held = [addition for collected in self.at_begin if (addition := collected.add(request)) is not None]
        if held:
            self._held[key] = held

    def end(self, request: RequestFacts) -> None:
        """Add a request that ended to the other families."""
        for collected in self.at_end:
            collected.add(request)

    def withdraw(self, key: int) -> None:
        """Take a request back from the gauges of requests in flight."""
        for series, value in self._held.pop(key, ()):
            series.value -= value


class RequestMetrics:
    """Passes the requests of one model version to the declared metrics."""

    __slots__ = ("_metrics", "_of")

    def __init__(self, metrics: DeclaredMetrics, of: ModelIdentity) -> None:
        self._metrics = metrics
        self._of = of

    def begin(self, request: InferRequest) -> None:
        """Count an admitted request."""
        if self._metrics.at_begin:
            self._metrics.begin(id(request), RequestFacts(self._of, request))

    def end(
        self,
        request: InferRequest,
        answer: InferResponse | ConchError | None,
        failure: ConchError | None = None,
        first_response: int = 0,
        cache_hit: bool = False,
    ) -> None:
        """Count the end of an admitted request, or a cache hit."""
        self._metrics.withdraw(id(request))
        if self._metrics.at_end:
            self._metrics.end(RequestFacts(self._of, request, answer, failure, first_response, cache_hit))

    def begin_prompt(self, request: GenerationRequest) -> None:
        """Count an admitted prompt of a language model."""
        if self._metrics.at_begin:
            self._metrics.begin(id(request), PromptFacts(self._of, request))

    def end_prompt(self, request: GenerationRequest, end: Usage | ConchError) -> None:
        """Count the end of an admitted prompt."""
        self._metrics.withdraw(id(request))
        if self._metrics.at_end:
            self._metrics.end(PromptFacts(self._of, request, end))

    def withdraw(self, request: GenerationRequest) -> None:
        """Take back the begin of a prompt that was not admitted after all."""
        self._metrics.withdraw(id(request))


def _label(value: object) -> str:
    """Return the text of a label's value, at most 256 characters."""
    if type(value) is str and len(value) <= _MAX_LABEL_CHARACTERS:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    return text[:_MAX_LABEL_CHARACTERS]
