"""Compare an incident with its replay: latencies of requests, and which requests were executed together. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.domain.events.layout import OUTCOMES
from conch.domain.events.log import EventLog

PERCENTILES = (50, 95, 99)
_OK = OUTCOMES.index("ok")


@dataclass(frozen=True)
class ReplayRun:
    """One model's requests in a recording or a replay, which are known by their place in the order of arrival."""

    latency_s: NDArray[np.float64]  # of the calls of successful ones
    requests: int
    failed: int
    batches: Sequence[frozenset[int]]  # places of their requests, in the order of forming

    def percentiles(self) -> dict[str, float | None]:
        """Return P50, P95 and P99 in seconds, None without a successful request."""
        if not len(self.latency_s):
            return dict.fromkeys((f"p{value}" for value in PERCENTILES), None)
        found = np.percentile(self.latency_s, PERCENTILES)
        return {f"p{value}": float(time) for value, time in zip(PERCENTILES, found, strict=True)}


def run_of(log: EventLog, model: str, after_ns: int = 0) -> ReplayRun:
    """Return what a log has of the requests to a model that were received after a time."""
    rows = log.requests
    number = log.names.index(model) if model in log.names else -1
    rows = rows[(rows["model"] == number) & (rows["received"] > after_ns) & (rows["outcome"] != 0)]
    rows = rows[np.argsort(rows["received"], kind="stable")]
    succeeded = rows[rows["outcome"] == _OK]
    began, ended = _calls(log, succeeded)
    return ReplayRun((ended - began) / 1e9, len(rows), len(rows) - len(succeeded), _batches(log, rows))


def _calls(log: EventLog, rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return when the calls of requests began and ended: first byte and last write, where the log has the call."""
    calls = np.sort(log.exchanges, order="number")
    began, ended = rows["received"].astype(np.int64), rows["done"].astype(np.int64)
    if not len(calls):
        return began, ended
    call = calls[np.minimum(np.searchsorted(calls["number"], rows["exchange"]), len(calls) - 1)]
    known = (call["number"] == rows["exchange"]) & (rows["exchange"] > 0) & (rows["parent"] == 0)
    first = np.where(call["first_byte"] > 0, call["first_byte"], call["received"])
    last = np.max([call["drained"], call["written"], call["encoded"]], axis=0)
    began = np.where(known & (first > 0), np.minimum(first, began), began)
    return began, np.where(known, np.maximum(last, ended), ended)


def _batches(log: EventLog, rows: NDArray[Any]) -> list[frozenset[int]]:
    formed = dict(zip(log.batches["number"].tolist(), log.batches["formed"].tolist(), strict=True))
    members: dict[int, set[int]] = {}
    for place, batch in enumerate(rows["batch"].tolist()):
        if batch in formed:
            members.setdefault(batch, set()).add(place)
    return [frozenset(members[batch]) for batch in sorted(members, key=lambda batch: formed[batch])]


@dataclass(frozen=True)
class ReplayComparison:
    """A model's recording beside its replay."""

    model: str
    recorded: ReplayRun
    replayed: ReplayRun

    @property
    def equal_batches(self) -> float:
        """The share of recorded batches that have the same requests in the replay; 1 without batches."""
        again, recorded = set(self.replayed.batches), self.recorded.batches
        return sum(batch in again for batch in recorded) / len(recorded) if recorded else 1.0

    @property
    def has_same_sequence(self) -> bool:
        """Whether all batches are the same, in the same order."""
        return list(self.recorded.batches) == list(self.replayed.batches)

    def document(self) -> dict[str, Any]:
        """Return the comparison as JSON values; times are seconds."""
        return {
            "model": self.model,
            **{
                name: {
                    "requests": run.requests,
                    "failed": run.failed,
                    **{f"{key}_s": time for key, time in run.percentiles().items()},
                    "batches": len(run.batches),
                    "mean_batch": sum(map(len, run.batches)) / len(run.batches) if run.batches else None,
                }
                for name, run in (("recorded", self.recorded), ("replayed", self.replayed))
            },
            "equal_batches": self.equal_batches,
            "same_sequence": self.has_same_sequence,
        }
