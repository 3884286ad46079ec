"""The answer to a question about an event log: the request or the percentile, in words, rows and a document."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from conch.base.errors import NotFound
from conch.base.report.waterfall import PhaseMark, Segment, WaterfallRow
from conch.domain.causes.cause import CAUSES, NESTED, WAITS
from conch.domain.causes.explain import Explainer
from conch.domain.causes.parts import RequestParts
from conch.domain.causes.percentile import Percentile, explain_percentile
from conch.domain.causes.sentences import (
    batch_text,
    batching_sentence,
    main_cause,
    percentile_sentence,
    processors_sentence,
    request_sentence,
    totals,
    waits,
)
from conch.domain.events.layout import OUTCOMES
from conch.domain.events.log import EventLog

_DEFAULT_PERCENTILE: Final = 99.0
_MAX_BATCHES: Final = 5
# Causes that how a model forms batches may change.
_OF_BATCHING: Final = {*WAITS, "compute"}
_PERCENTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d{1,4})?)")

# Label of a cause → how it looks.
MARKS: Final[Mapping[str, PhaseMark]] = MappingProxyType(
    {cause.label: PhaseMark(cause.character, cause.letter, cause.style, cause.color) for cause in CAUSES.values()}
    | {NESTED: PhaseMark("─", "-", "bright_black", 4)}
)


class CauseLine(NamedTuple):
    """A cause of a request, with its share of the whole."""

    label: str
    model: str
    ns: int
    share: float


@dataclass(frozen=True)
class Explanation:
    """Why something took its time. `request` is the request, or a typical one of the slow requests of `percentile`.

    `sentences` begin with the one that says why; `warnings` say what the log lacks.
    """

    log: EventLog
    explainer: Explainer
    request: RequestParts
    percentile: Percentile | None
    sentences: Sequence[str]
    warnings: Sequence[str]

    @property
    def title(self) -> str:
        """Which request it is, and when it came."""
        row = self.request.row
        wall = datetime.fromtimestamp(self.log.wall(self.request.start) / 1e9, UTC)
        id_ = next(iter(self._ids()), "")
        outcome = OUTCOMES[row["outcome"]]
        return (
            f"request #{self.request.number}" + (f" ({id_})" if id_ else "")
            + f", {self.request.model} version {row['version']}, at {wall:%Y-%m-%d %H:%M:%S.%f} UTC"
            + (f", {outcome}" if outcome != "ok" else "")
        )  # fmt: skip

    def rows(self) -> list[WaterfallRow]:
        """Return the request and the nested ones of its critical path as rows of a waterfall."""
        return [
            WaterfallRow(
                step.model, depth, step.start, step.end,
                [Segment(_label(part.cause), part.start, part.end) for part in step.parts],
                self.log.names[int(step.row["reason"])],
            )
            for depth, step in self.request.walk()
        ]  # fmt: skip

    def causes(self) -> list[CauseLine]:
        """Return the causes of the request, the longest first."""
        whole = max(self.request.ns, 1)
        return [CauseLine(CAUSES[cause].label, model, ns, ns / whole) for cause, model, ns in totals(self.request)]

    def batches(self) -> list[str]:
        """Return what the request, or the slow requests, waited behind, the longest wait first."""
        if self.percentile is not None:
            numbers = [number for number, _ in self.percentile.batches]
        else:
            numbers = [number for number, _ in waits(self.request)]
        return [batch_text(self.explainer, number) for number in numbers[:_MAX_BATCHES]]

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON values; times are nanoseconds."""
        request = self.request
        spans = [
            {
                "number": step.number,
                "depth": depth,
                "model": step.model,
                "start_ns": step.start - request.start,
                "duration_ns": step.ns,
                "parts": [
                    {
                        "cause": part.cause,
                        "start_ns": part.start - request.start,
                        "duration_ns": part.ns,
                        **({"batch": part.batch} if part.batch else {}),
                    }
                    for part in step.parts
                ],
            }
            for depth, step in request.walk()
        ]
        document: dict[str, Any] = {
            "sentences": [*self.sentences],
            "warnings": [*self.warnings],
            "request": {
                "number": request.number,
                "ids": [*self._ids()],
                "model": request.model,
                "version": int(request.row["version"]),
                "outcome": OUTCOMES[request.row["outcome"]],
                "start_unix_ns": self.log.wall(request.start),
                "duration_ns": request.ns,
                "causes": [{"cause": cause, "model": model, "duration_ns": ns} for cause, model, ns in totals(request)],
                "spans": spans,
            },
            "behind": self.batches(),
        }
        if self.percentile is not None:
            some = self.percentile
            document["percentile"] = {
                "percentile": some.percentile,
                "requests": some.requests,
                "threshold_ns": some.threshold_ns,
                "slow": [*some.slow],
                "slow_ns": round(some.slow_ns),
                "ordinary_ns": round(some.ordinary_ns),
                "causes": [
                    {
                        "cause": cause.cause,
                        "model": cause.model,
                        "slow_ns": round(cause.slow_ns),
                        "ordinary_ns": round(cause.ordinary_ns),
                    }
                    for cause in some.causes
                ],
            }
        return document

    def _ids(self) -> Iterator[str]:
        ids = self.log.tables["ids"]
        for number in ids["text"][ids["request"] == self.request.number]:
            yield self.log.names[int(number)]


def answer(log: EventLog, target: str, model: str = "") -> Explanation:
    """Explain a percentile (p99), a model, or a request's number (#17) or id. Raises NotFound, InvalidRequest."""
    explainer = Explainer(log)
    warnings = [*_lost(log)]
    wanted = _PERCENTILE.fullmatch(target)
    if wanted is None and not target.startswith("#") and _has_model(log, target):
        model = target
    elif wanted is None:
        try:
            request = explainer.explain(log.find(target))
        except NotFound as error:
            raise NotFound(f"{error}; give #NUMBER, an id, a percentile such as p99 or {_models(log)}") from None
        assert request is not None
        cause, of_model = main_cause(request)
        sentences = [
            request_sentence(request),
            _otherwise(log, cause, of_model, [request]),
            processors_sentence(explainer, [request]) if cause == "cpu" else "",
        ]
        return Explanation(log, explainer, request, None, [*filter(None, sentences)], warnings)
    percentile = explain_percentile(explainer, float(wanted[1]) if wanted else _DEFAULT_PERCENTILE, model)
    typical = explainer.explain(_typical(explainer, percentile))
    assert typical is not None
    first_cause, first_model = percentile.causes[0].cause, percentile.causes[0].model
    slow = [request for number in percentile.slow if (request := explainer.explain(number)) is not None]
    sentences = [
        percentile_sentence(percentile),
        _otherwise(log, first_cause, first_model, slow),
        processors_sentence(explainer, slow) if first_cause == "cpu" else "",
        batching_sentence(explainer, first_model) if model or first_cause in _OF_BATCHING else "",
    ]
    return Explanation(log, explainer, typical, percentile, [*filter(None, sentences)], warnings)


def _otherwise(log: EventLog, cause: str, model: str, requests: Sequence[RequestParts]) -> str:
    """Return what another configuration of a model would have changed, "" if nothing is known to help."""
    if cause not in WAITS:
        return ""
    from conch.measure.twin.replay import counterfactual

    numbers = [step.number for request in requests for _, step in request.walk() if step.model == model]
    text = counterfactual(log, model, numbers)
    return f'Simulated, for "{model}": {text}' if text else ""


def _typical(explainer: Explainer, percentile: Percentile) -> int:
    """Return the slow request that is closest to their mean, of those to which the first cause matters."""
    first = percentile.causes[0]
    distances = dict[int, float]()
    for number in percentile.slow:
        request = explainer.explain(number)
        parts = [*request.leaves()] if request is not None else []
        mine = sum(part.ns for part in parts if (part.cause, part.model) == (first.cause, first.model))
        if mine >= min(first.slow_ns, percentile.slow_ns / 2):
            distances[number] = abs(sum(part.ns for part in parts) - percentile.slow_ns)
    return min(distances, key=distances.__getitem__, default=percentile.slow[0])


def _has_model(log: EventLog, name: str) -> bool:
    return name in log.names and bool((log.requests["model"] == log.names.index(name)).any())


def _models(log: EventLog) -> str:
    names = sorted({log.names[int(number)] for number in {*log.requests["model"].tolist()}} - {""})
    return "a model" + (f", such as '{names[0]}'" if names else "")


def _lost(log: EventLog) -> Iterator[str]:
    if log.overrun_before:
        wall = datetime.fromtimestamp(log.wall(log.overrun_before) / 1e9, UTC)
        lost = ", ".join(f"{number} {kind}" for kind, number in log.lost.items() if number)
        yield f"the event log begins at {wall:%H:%M:%S} UTC: it overwrote earlier rows ({lost or 'number unknown'})"


def _label(cause: str) -> str:
    return CAUSES[cause].label if cause in CAUSES else cause
