"""Causes of a percentile: what slow requests spend time on that ordinary ones of the same model do not."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from conch.base.errors import InvalidRequest, NotFound
from conch.domain.causes.explain import Explainer
from conch.domain.causes.parts import Table, TimePart
from conch.domain.events.layout import OUTCOMES

_MAX_SAMPLES: Final = 200  # requests of a group that are explained
_ORDINARY: Final = (25, 75)  # percentiles between which requests are ordinary
_COUNTED: Final = tuple(OUTCOMES.index(name) for name in ("ok", "timeout"))
_MIN_REQUESTS: Final = 10
_MIN_DIFFERENCE: Final = 0.1  # of the time of slow requests

# A cause, and the model whose time it is.
Blame = tuple[str, str]


class RankedCause(NamedTuple):
    """What a cause costs a slow request on average, and an ordinary one; times are nanoseconds."""

    cause: str
    model: str
    slow_ns: float
    ordinary_ns: float

    @property
    def more_ns(self) -> float:
        """What it costs slow requests more."""
        return self.slow_ns - self.ordinary_ns


class Percentile(NamedTuple):
    """The requests from a percentile on.

    `causes` are ranked by what explains the difference to ordinary requests, those of one cause together. `batches`
    are, for the first cause, the numbers of the batches to which its time belongs, the longest first, with their parts
    of it. `differs` is false if slow requests take about as long as ordinary ones.
    """

    percentile: float
    requests: int  # of the log that count
    threshold_ns: int
    number: int  # of requests that took at least that
    slow: Sequence[int]  # the numbers of those that were explained, the slowest first
    slow_ns: float
    ordinary_ns: float
    differs: bool
    causes: Sequence[RankedCause]
    batches: Sequence[tuple[int, float]]


def explain_percentile(explainer: Explainer, percentile: float, model: str = "") -> Percentile:
    """Compare slow requests with ordinary ones. `model` "" is all requests of clients.

    Raises NotFound if the log has no such model; InvalidRequest if it has too few requests.
    """
    requests = explainer.log.requests
    counted = np.isin(requests["outcome"], _COUNTED) & (requests["done"] > 0)
    if model:
        names = list(explainer.log.names)
        if model not in names or not (mine := requests["model"] == names.index(model)).any():
            known = sorted({names[int(number)] for number in np.unique(requests["model"])})
            raise NotFound(f"the event log has no request to a model '{model}'; it has {_listed(known)}")
        counted &= mine
    else:
        counted &= requests["parent"] == 0
    if (number := int(counted.sum())) < _MIN_REQUESTS:
        counted_text = "1 finished request" if number == 1 else f"{number} finished requests"
        raise InvalidRequest(f"the event log has {counted_text}; a percentile needs {_MIN_REQUESTS} or more")
    whole = explainer.whole_ns()[counted]
    rows = requests[counted]
    threshold = float(np.percentile(whole, percentile, method="higher"))
    is_slow = whole >= threshold
    slow = _sample(rows[is_slow], whole[is_slow])
    slow_parts, ordinary_parts, ordinary_ns = list[list[TimePart]](), defaultdict[Blame, float](float), 0.0
    for key, mine_slow in _by_model(slow):
        mine = (rows["model"] == key[0]) & (rows["version"] == key[1])
        low, high = np.percentile(whole[mine], _ORDINARY)
        ordinary = mine & (whole >= low) & (whole <= high)
        explained = [_parts(explainer, row) for row in _sample(rows[ordinary], whole[ordinary])]
        share = len(mine_slow) / len(slow) / max(len(explained), 1)
        for parts in explained:
            ordinary_ns += share * sum(part.ns for part in parts)
            for part in parts:
                ordinary_parts[part.cause, part.model] += share * part.ns
        slow_parts += [_parts(explainer, row) for row in mine_slow]
    sums = Counter[Blame]()
    for part in (part for parts in slow_parts for part in parts):
        sums[part.cause, part.model] += part.ns
    slow_ns = sum(sums.values()) / len(slow)
    causes = [RankedCause(*blame, sums[blame] / len(slow), ordinary_parts[blame]) for blame in {*sums, *ordinary_parts}]
    if not causes:
        raise InvalidRequest("the requests in the event log end when they begin; a percentile has no causes")
    differs = slow_ns - ordinary_ns >= _MIN_DIFFERENCE * slow_ns
    weights = {cause: cause.more_ns if differs else cause.slow_ns for cause in causes}
    of_cause = Counter[str]()
    for cause, weight in weights.items():
        of_cause[cause.cause] += round(weight)
    # A cause that several models have in common may matter most, although none of its parts does.
    causes.sort(key=lambda cause: (-of_cause[cause.cause], cause.cause, -weights[cause]))
    return Percentile(
        percentile, number, int(threshold), int(is_slow.sum()), slow["number"].tolist(), slow_ns, ordinary_ns, differs,
        causes, _batches(slow_parts, causes[0]),
    )  # fmt: skip


def _parts(explainer: Explainer, row: Any) -> list[TimePart]:
    explained = explainer.explain(int(row["number"]))
    return list(explained.leaves()) if explained is not None else []


def _sample(rows: Table, whole: Table) -> Table:
    """Return at most `_MAX_SAMPLES` rows, the slowest first, evenly by their times."""
    order = np.argsort(-whole, kind="stable")
    if len(order) > _MAX_SAMPLES:
        order = order[np.linspace(0, len(order) - 1, _MAX_SAMPLES).astype(int)]
    chosen: Table = rows[order]
    return chosen


def _by_model(rows: Table) -> Iterable[tuple[tuple[int, int], Table]]:
    for model, version in sorted({(int(row["model"]), int(row["version"])) for row in rows}):
        yield (model, version), rows[(rows["model"] == model) & (rows["version"] == version)]


def _batches(slow: Iterable[Iterable[TimePart]], cause: RankedCause) -> list[tuple[int, float]]:
    times = Counter[int]()
    for part in (part for parts in slow for part in parts):
        if part.batch and (part.cause, part.model) == (cause.cause, cause.model):
            times[part.batch] += part.ns
    total = max(sum(times.values()), 1)
    return [(number, ns / total) for number, ns in times.most_common()]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:5])
    return (shown or "no requests at all") + (f" and {len(names) - 5} more" if len(names) > 5 else "")
