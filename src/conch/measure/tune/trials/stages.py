"""Queue and compute time of composing models over a window, and which of them is the bottleneck. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_MIN_SHARE = 0.5  # of the requests of the whole that a model must have had to be a stage of it


@dataclass(frozen=True, slots=True)
class StageLoad:
    """A stage over a window: seconds per request of it, and how many instances its computing kept busy."""

    model: str
    requests: int
    queue_s: float
    compute_s: float
    busy_instances: float
    instances: int

    @property
    def utilization(self) -> float:
        """Share of the instances' time in which they computed."""
        return self.busy_instances / max(1, self.instances)


def stage_loads(
    before: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Mapping[str, Any]],
    instances: Mapping[str, int],
    window_s: float,
) -> list[StageLoad]:
    """Return the loads of the models in `instances` from two answers of the statistics endpoint."""
    loads = []
    for model, count in instances.items():
        first, last = before.get(model, {}), after.get(model, {})
        requests = _delta(first, last, "success", "count")
        if not requests:
            continue
        queue_ns = _delta(first, last, "queue", "ns")
        # A batch computes once for all of its requests, each of which is charged with the whole time.
        compute_ns = sum(_delta(first, last, f"compute_{part}", "ns") for part in ("input", "infer", "output"))
        executions = last.get("execution_count", 0) - first.get("execution_count", 0)
        inferences = last.get("inference_count", 0) - first.get("inference_count", 0)
        batch = inferences / executions if executions else 1.0
        busy = compute_ns / 1e9 / max(window_s, 1e-9) / max(batch, 1.0)
        loads.append(StageLoad(model, requests, queue_ns / requests / 1e9, compute_ns / requests / 1e9, busy, count))
    return loads


def bottleneck(loads: Iterable[StageLoad]) -> StageLoad | None:
    """Return the stage to widen: that with the longest queue; without queues, that which computes longest."""
    found = list(loads)
    if not found:
        return None
    if max(each.queue_s for each in found) > max(each.compute_s for each in found) / 10:
        return max(found, key=lambda each: each.queue_s)
    return max(found, key=lambda each: each.compute_s)


def called_models(
    model: str, before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the models that had requests while this one had: those that a BLS model calls, if no other client does."""
    own = _delta(before.get(model, {}), after.get(model, {}), "success", "count")
    return [
        name
        for name, last in after.items()
        if name != model and own and _delta(before.get(name, {}), last, "success", "count") >= own * _MIN_SHARE
    ]


def _delta(before: Mapping[str, Any], after: Mapping[str, Any], part: str, field: str) -> int:
    def value(stats: Mapping[str, Any]) -> int:
        return int(stats.get("inference_stats", {}).get(part, {}).get(field, 0))

    # A reload begins with 0.
    return value(after) - value(before) if value(after) >= value(before) else value(after)
