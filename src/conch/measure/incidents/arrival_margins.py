"""Move recorded arrivals away from the times at which batches were formed, so that a replay forms the same ones. Pure.

In real time a request arrives some 100 µs earlier or later than recorded. One that came just before its batch was
formed would miss it, one that came just after another batch would be in that.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from conch.domain.events.layout import WHY_NOW
from conch.domain.events.log import EventLog

_MARGIN_NS: Final = 1_500_000
# How far an arrival is moved at most: this, and this share of the model's median time in the queue and its execution.
_MAX_MOVE_NS: Final = 2_000_000
_MAX_MOVE_SHARE: Final = 0.1
# A batch is formed at most this much later than the arrival, or the release of an instance, which is its cause.
_MAX_FORMING_NS: Final = 500_000
_FULL: Final = WHY_NOW.index("full")
_DELAY_OVER: Final = WHY_NOW.index("delay over")


def with_margins(log: EventLog, rows: NDArray[Any]) -> NDArray[np.int64]:
    """Return when to send requests (ns, by their rows), so that batches form with a margin. `log` has the batches."""
    times = rows["received"].astype(np.int64)
    for model in np.unique(rows["model"]):
        places = np.flatnonzero((rows["model"] == model) & (rows["queued"] > 0))
        places = places[np.argsort(rows["queued"][places], kind="stable")]
        batches = log.batches[log.batches["model"] == model]
        batches = batches[np.argsort(batches["formed"], kind="stable")]
        if len(places) and len(batches):
            times[places] += _moves(rows[places], batches)
    return times


def _moves(requests: NDArray[Any], batches: NDArray[Any]) -> NDArray[np.int64]:
    """Return by how much a model's requests, in the order of their queue, arrive later than recorded.

    `batches` are in the order of forming. One that an arrival formed, or the delay after an arrival, moves with that.
    """
    queued = requests["queued"].astype(np.int64)
    place_of = {number: place for place, number in enumerate(batches["number"].tolist())}
    own = [place_of.get(number, -1) for number in requests["batch"].tolist()]
    causes = _causes(batches, queued, own)
    ended = requests["done"] > 0
    median_ns = float(np.median((requests["done"] - queued)[ended])) if ended.any() else 0.0
    most = int(min(_MAX_MOVE_NS, median_ns * _MAX_MOVE_SHARE))
    formed = batches["formed"].tolist()
    formed_before = (np.searchsorted(batches["formed"], queued, side="left") - 1).tolist()
    is_full = (batches["why_now"] == _FULL).tolist()
    moved = queued.copy()
    for place, at in enumerate(queued.tolist()):
        batch, previous = own[place], formed_before[place]
        low, high = at - most, at + most
        if previous >= 0 and not (is_full[previous] and causes[previous] < 0):  # otherwise that one is full
            low = max(low, formed[previous] + _MARGIN_NS)
        if batch >= 0 and causes[batch] < place:
            high = min(high, formed[batch] - _MARGIN_NS)
        wanted = min(max(at, low), high) if low <= high else (low + high) // 2
        moved[place] = wanted = min(max(wanted, at - most), at + most)
        if batch >= 0 and causes[batch] == place:
            formed[batch] += wanted - at
    return moved - queued


def _causes(batches: NDArray[Any], queued: NDArray[np.int64], own: Sequence[int]) -> list[int]:
    """Return by batch the place of the request whose arrival, or delay, formed it; -1 where a free instance did."""
    first, last = dict[int, int](), dict[int, int]()
    for place, batch in enumerate(own):
        first.setdefault(batch, place)
        last[batch] = place
    released = np.sort(batches["released"])
    causes = list[int]()
    for batch, (formed, why) in enumerate(zip(batches["formed"].tolist(), batches["why_now"].tolist(), strict=True)):
        if batch not in first:
            causes.append(-1)
            continue
        releases = int(np.searchsorted(released, formed, side="right"))
        release = int(released[releases - 1]) if releases else 0
        if queued[first[batch]] < release and formed - release <= _MAX_FORMING_NS:
            causes.append(-1)
        elif why == _DELAY_OVER:
            causes.append(first[batch])
        else:
            causes.append(last[batch] if formed - queued[last[batch]] <= _MAX_FORMING_NS else -1)
    return causes
