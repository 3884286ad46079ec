"""How many replicas one metric asks for. Values are integers in thousandths, as in kube-controller-manager."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isnan, nan

from conch.operate.scaling.autoscaler import MetricReading, Pod, PodPhase
from conch.operate.scaling.hpa.spec import HpaSettings, MetricSpec, MetricType, TargetType
from conch.operate.scaling.object_reader import milli

_MAX_REPLICAS = 2**31 - 1
_FULL_UTILIZATION = 100


class MetricUnavailable(Exception):
    """A metric gives no number of replicas; the message is the one of the condition."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Ratios of usage to target from 1 - down to 1 + up cause no change."""

    down: float
    up: float

    def contain(self, ratio: float) -> bool:
        """Return whether a ratio is close enough to 1."""
        return 1.0 - self.down <= ratio <= 1.0 + self.up


@dataclass(frozen=True, slots=True)
class ReplicaProposal:
    """The replicas that a metric asks for, and what status.currentMetrics shows."""

    replicas: int
    usage: float


@dataclass(frozen=True, slots=True)
class PodGroups:
    """Pods by what their values count for. `ready` has a value that counts."""

    ready: int
    unready: frozenset[str]
    missing: frozenset[str]
    ignored: frozenset[str]


@dataclass(frozen=True, slots=True)
class Observation:
    """What the controller sees at one sync: replicas of spec and status of the target, its pods, and the time."""

    now_s: float
    spec_replicas: int
    status_replicas: int
    pods: Sequence[Pod]


def propose(
    metric: MetricSpec, reading: MetricReading, seen: Observation, tolerances: Tolerances, settings: HpaSettings
) -> ReplicaProposal:
    """Return the replicas that a metric asks for. Raises MetricUnavailable."""
    if reading.error:
        raise MetricUnavailable(reading.error)
    if metric.type in {MetricType.OBJECT, MetricType.EXTERNAL}:
        if reading.value is None:
            raise MetricUnavailable(f"unable to get {metric.type.value.lower()} metric {metric.name}: no value")
        if metric.target_type is TargetType.AVERAGE_VALUE:
            return _from_total_per_pod(milli(reading.value), milli(metric.target), seen.status_replicas, tolerances)
        return _from_total(milli(reading.value), milli(metric.target), seen, tolerances)
    return _from_pods(metric, reading, seen, tolerances, settings)


def group_pods(
    pods: Sequence[Pod], reading: MetricReading, resource: str, now_s: float, settings: HpaSettings
) -> PodGroups:
    """Group pods; `resource` is "cpu" where usage during start-up must not count, otherwise any other name."""
    ready = 0
    unready, missing, ignored = set(), set(), set()
    for pod in pods:
        if pod.deleted or pod.phase is PodPhase.FAILED:
            ignored.add(pod.name)
        elif pod.phase is PodPhase.PENDING:
            unready.add(pod.name)
        elif pod.name not in reading.by_pod:
            missing.add(pod.name)
        elif resource == "cpu" and _is_starting(pod, reading, now_s, settings):
            unready.add(pod.name)
        else:
            ready += pod.count
    return PodGroups(ready, frozenset(unready), frozenset(missing), frozenset(ignored))


def _is_starting(pod: Pod, reading: MetricReading, now_s: float, settings: HpaSettings) -> bool:
    if pod.started_s is None or pod.ready_since_s is None:
        return True
    if pod.started_s + settings.cpu_initialization_period_s > now_s:
        measured = now_s if reading.measured_at_s is None else reading.measured_at_s
        return not pod.ready or measured < pod.ready_since_s + reading.window_s
    # It has never been ready: the condition did not change since it started.
    return not pod.ready and pod.started_s + settings.initial_readiness_delay_s > pod.ready_since_s


def _from_pods(
    metric: MetricSpec, reading: MetricReading, seen: Observation, tolerances: Tolerances, settings: HpaSettings
) -> ReplicaProposal:
    if not seen.pods:
        raise MetricUnavailable("no pods returned by selector while calculating replica count")
    is_resource = metric.type is not MetricType.PODS
    groups = group_pods(seen.pods, reading, metric.name if is_resource else "", seen.now_s, settings)
    values = {
        name: milli(value)
        for name, value in reading.by_pod.items()
        if name not in groups.ignored and name not in groups.unready
    }
    if not values:
        raise MetricUnavailable("did not receive metrics for targeted pods (pods might be unready)")
    counts = {pod.name: pod.count for pod in seen.pods if pod.count != 1}
    is_utilization = metric.target_type is TargetType.UTILIZATION
    usage_of = _utilization(metric, seen.pods, counts) if is_utilization else _Average(milli(metric.target), counts)
    ratio, shown = usage_of.ratio(values)
    scale_up_with_unready = bool(groups.unready) and ratio > 1.0
    if not scale_up_with_unready and not groups.missing:
        if tolerances.contain(ratio):
            return ReplicaProposal(seen.spec_replicas, shown)
        return ReplicaProposal(_whole(ratio * groups.ready), shown)

    # Pods without a value damp the change: they count as at the target when it goes down, as idle when it goes up.
    for name in groups.missing if ratio != 1.0 else ():
        values[name] = usage_of.when_missing(name) if ratio < 1.0 else 0
    for name in groups.unready if scale_up_with_unready else ():
        values[name] = 0
    damped, _ = usage_of.ratio(values)
    turned = (ratio < 1.0 < damped) or (damped < 1.0 < ratio)
    if tolerances.contain(damped) or turned:
        return ReplicaProposal(seen.spec_replicas, shown)
    replicas = _whole(damped * sum(counts.get(name, 1) for name in values))
    if (damped < 1.0 and replicas > seen.spec_replicas) or (damped > 1.0 and replicas < seen.spec_replicas):
        return ReplicaProposal(seen.spec_replicas, shown)
    return ReplicaProposal(replicas, shown)


@dataclass(frozen=True, slots=True)
class _Utilization:
    """Usage as a percentage of requests."""

    target: int
    requests: Mapping[str, int]
    counts: Mapping[str, int]

    def ratio(self, values: Mapping[str, int]) -> tuple[float, float]:
        known = [name for name in values if name in self.requests]
        requested = sum(self.requests[name] * self.counts.get(name, 1) for name in known)
        if not requested:
            raise MetricUnavailable("no metrics returned matched known pods")
        percent = sum(values[name] * self.counts.get(name, 1) for name in known) * 100 // requested
        return percent / self.target, float(percent)

    def when_missing(self, pod: str) -> int:
        return self.requests[pod] * max(_FULL_UTILIZATION, self.target) // 100


@dataclass(frozen=True, slots=True)
class _Average:
    """Usage as the average of the pods."""

    target: int
    counts: Mapping[str, int]

    def ratio(self, values: Mapping[str, int]) -> tuple[float, float]:
        total = sum(value * self.counts.get(name, 1) for name, value in values.items())
        average = total // sum(self.counts.get(name, 1) for name in values)
        return average / self.target, average / 1000

    def when_missing(self, pod: str) -> int:
        del pod
        return self.target


def _utilization(metric: MetricSpec, pods: Sequence[Pod], counts: Mapping[str, int]) -> _Utilization:
    requests = {}
    for pod in pods:
        request = pod.requests.get(metric.request_key)
        if request is None:
            raise MetricUnavailable(
                f"missing request for {metric.name} in container {metric.container} of Pod {pod.name}"
            )
        requests[pod.name] = milli(request)
    return _Utilization(int(metric.target), requests, counts)


def _from_total(usage: int, target: int, seen: Observation, tolerances: Tolerances) -> ReplicaProposal:
    ratio = usage / target
    if seen.spec_replicas == 0:
        return ReplicaProposal(_whole(ratio), usage / 1000)
    if tolerances.contain(ratio):
        return ReplicaProposal(seen.spec_replicas, usage / 1000)
    if not seen.pods:
        raise MetricUnavailable(
            "unable to calculate ready pods: no pods returned by selector while calculating replica count"
        )
    ready = sum(pod.count for pod in seen.pods if pod.phase is PodPhase.RUNNING and pod.ready)
    return ReplicaProposal(_whole(ratio * ready), usage / 1000)


def _from_total_per_pod(usage: int, target: int, replicas: int, tolerances: Tolerances) -> ReplicaProposal:
    ratio = usage / (target * replicas) if replicas else (inf if usage else nan)
    proposed = replicas if tolerances.contain(ratio) else _whole(usage / target)
    return ReplicaProposal(proposed, ceil(usage / replicas) / 1000 if replicas else 0.0)


def _whole(replicas: float) -> int:
    return 0 if isnan(replicas) else min(ceil(replicas), _MAX_REPLICAS)
