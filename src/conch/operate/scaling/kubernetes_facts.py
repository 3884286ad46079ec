"""Facts of Kubernetes that `conch check` and `conch autoscale doctor` state: a predicate on objects, and its message.

`FACTS` lists them; an id is that of the rule of `conch check`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from conch.base.kubernetes.objects import items, labels_of, mapping, matches, part, selects
from conch.domain.metrics.catalog import all_metrics
from conch.operate.monitoring.promql import Aggregation, Call, Node, PromqlError, Selector, metric_names, parse, strip
from conch.operate.monitoring.rules.known_metrics import MetricTable
from conch.operate.scaling.object_reader import parse_quantity

KubernetesObject: TypeAlias = Mapping[str, Any]
ObjectPath: TypeAlias = tuple[str | int, ...]
HPA = "HorizontalPodAutoscaler"
SCALED_OBJECT = "ScaledObject"
_KEDA_PREFIX = "keda-hpa-"
# Autoscaler → keys of the lowest and the highest number of replicas.
AUTOSCALERS = {HPA: ("minReplicas", "maxReplicas"), SCALED_OBJECT: ("minReplicaCount", "maxReplicaCount")}
# Kind of workload → path of the pod's template; () for a pod itself.
POD_TEMPLATES: dict[str, tuple[str, ...]] = {
    "Pod": (),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"), ("spec", "template")),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
# Monitor of the Prometheus operator → key of what it scrapes.
MONITORS = {"ServiceMonitor": "endpoints", "PodMonitor": "podMetricsEndpoints"}
_SUMS = ("sum", "avg", "max", "min")


@dataclass(frozen=True, slots=True)
class Violation:
    """An object that ignores a fact: the path of the part, and the message.

    `metric` is the metric of an autoscaler that it is about, `other` another object with the path of a part and what
    that says.
    """

    fact: str
    path: ObjectPath
    message: str
    metric: str = ""
    cure: str = ""
    other: tuple[KubernetesObject, ObjectPath, str] | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The objects that are known, in their order, and the names of series that rules record."""

    objects: Sequence[KubernetesObject]
    recorded: Collection[str] = ()

    def of_kinds(self, kinds: Collection[str], near: KubernetesObject) -> list[KubernetesObject]:
        """Return the objects of kinds that may be in the namespace of another one."""
        return [other for other in self.objects if other.get("kind") in kinds and in_one_namespace(other, near)]


def name_of(value: KubernetesObject) -> str:
    """Return the name of an object."""
    return str(part(value, "metadata", "name") or "")


def titled(value: KubernetesObject) -> str:
    """Return kind and name for messages."""
    return f"{value.get('kind')} '{name_of(value)}'"


def namespace_of(value: KubernetesObject) -> str:
    """Return the namespace of an object, or "" if it is that of the command that creates it."""
    return str(part(value, "metadata", "namespace") or "")


def in_one_namespace(first: KubernetesObject, second: KubernetesObject) -> bool:
    """Whether two objects may be in the same namespace. Manifests need not name theirs."""
    return len({namespace_of(first), namespace_of(second)} - {""}) < 2


def pod_labels(workload: KubernetesObject) -> dict[str, str]:
    """Return the labels of a workload's pods."""
    return labels_of(mapping(workload, *POD_TEMPLATES[str(workload.get("kind"))], "metadata"))


def pod_containers(workload: KubernetesObject) -> Iterator[tuple[ObjectPath, dict[str, Any]]]:
    """Yield the containers of a workload's pods with their paths."""
    path = (*POD_TEMPLATES[str(workload.get("kind"))], "spec", "containers")
    containers = part(workload, *path)
    for index, container in enumerate(containers if isinstance(containers, list) else ()):
        if isinstance(container, dict):
            yield (*path, index), container


def port_names(ports: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of ports that have one."""
    return tuple(str(port["name"]) for port in ports if "name" in port)


def written_labels(labels: Mapping[str, Any]) -> str:
    """Return labels as `kubectl` writes them."""
    return ",".join(f"{name}={value}" for name, value in labels.items())


def hpa_of(scaled_object: KubernetesObject) -> str:
    """Return the name of the HorizontalPodAutoscaler that KEDA creates for a ScaledObject."""
    name = part(scaled_object, "spec", "advanced", "horizontalPodAutoscalerConfig", "name")
    return str(name or f"{_KEDA_PREFIX}{name_of(scaled_object)}")


def owner_of(autoscaler: KubernetesObject, objects: Sequence[KubernetesObject]) -> KubernetesObject | None:
    """Return the ScaledObject for which KEDA created an autoscaler, None if it is another's."""
    if autoscaler.get("kind") != HPA:
        return None
    owners = {
        str(owner.get("name"))
        for owner in items(autoscaler, "metadata", "ownerReferences")
        if owner.get("kind") == SCALED_OBJECT
    }
    for other in Surroundings(objects).of_kinds((SCALED_OBJECT,), autoscaler):
        if name_of(other) in owners or hpa_of(other) == name_of(autoscaler):
            return other
    return {"kind": SCALED_OBJECT, "metadata": {"name": min(owners)}} if owners else None


def target_of(scaler: KubernetesObject) -> tuple[str, str]:
    """Return kind and name of the workload that an autoscaler scales."""
    target = mapping(scaler, "spec", "scaleTargetRef")
    return str(target.get("kind") or "Deployment"), str(target.get("name"))


def violations(value: KubernetesObject, surroundings: Surroundings) -> Iterator[Violation]:
    """Yield the facts of `FACTS` that an object ignores."""
    for kinds, predicate in FACTS:
        if value.get("kind") in kinds:
            yield from predicate(value, surroundings)


# ---- autoscalers -----------------------------------------------------------------------------------------------------


def unusable_metrics(scaler: KubernetesObject, surroundings: Surroundings) -> Iterator[Violation]:
    """Find metrics that are counters, with which an autoscaler never scales down, and metrics that do not exist."""
    if scaler.get("kind") == HPA:
        for index, metric in enumerate(items(scaler, "spec", "metrics")):
            for source in ("pods", "object", "external"):
                name = part(metric, source, "metric", "name")
                if isinstance(name, str) and name not in surroundings.recorded:
                    path = ("spec", "metrics", index, source, "metric", "name")
                    yield from _unusable_name(scaler, name, path, _maximum_reached(scaler, mapping(metric, source)))
    for index, trigger in enumerate(items(scaler, "spec", "triggers")):
        query = part(trigger, "metadata", "query")
        if trigger.get("type") == "prometheus" and isinstance(query, str):
            yield from _unusable_query(scaler, query, ("spec", "triggers", index, "metadata", "query"))


def _unusable_name(scaler: KubernetesObject, name: str, path: ObjectPath, explanation: str = "") -> Iterator[Violation]:
    metric = _known_metrics().find(name)
    if metric is not None and metric.is_counter:
        message = f"{titled(scaler)} scales on '{name}', a counter, which never falls{explanation}"
        yield Violation("autoscaler-counter", path, message, name)
    elif metric is None and _known_metrics().is_own(name):
        message = f"{titled(scaler)}: no metric is named '{name}'{_known_metrics().suggestion(name)}"
        yield Violation("autoscaler-metric", path, message, name)


def _maximum_reached(scaler: KubernetesObject, source: Mapping[str, Any]) -> str:
    """Explain what an autoscaler does with a counter of pods, with its own numbers."""
    target, most = parse_quantity(part(source, "target", "averageValue")), part(scaler, "spec", "maxReplicas")
    if target is None or not isinstance(most, int):
        return ""
    enough = target * most
    return (
        f": desired = sum / {target:g}. When the pods together have counted {enough:,.0f}, after {enough / 100:,.0f} s "
        f"at 100/s, it is at maxReplicas ({most}) and stays there without any load, until pods restart"
    )


def _unusable_query(scaler: KubernetesObject, query: str, path: ObjectPath) -> Iterator[Violation]:
    try:
        tree = parse(query)
    except PromqlError as error:
        if not any(sign in query for sign in "{$"):  # a template
            yield Violation("autoscaler-metric", path, f"{titled(scaler)}: {error}")
        return
    selector = _plain_selector(tree)
    metric = _known_metrics().find(selector.metric or "") if selector else None
    if selector is not None and metric is not None and metric.is_counter:
        yield from _unusable_name(scaler, selector.metric or "", path)
    for name in sorted(metric_names(tree)):
        if _known_metrics().find(name) is None:
            yield from _unusable_name(scaler, name, path)


def _plain_selector(node: Node) -> Selector | None:
    """Return the selector whose values a query has as they are, or summed."""
    inner: Any = strip(node)
    while isinstance(inner, Aggregation) and inner.operator in _SUMS:
        inner = strip(inner.expr)
    if isinstance(inner, Call) and inner.function == "scalar":
        return _plain_selector(inner.arguments[0])
    return inner if isinstance(inner, Selector) and inner.range_s is None else None


@cache
def _known_metrics() -> MetricTable:
    return MetricTable(all_metrics())


def _minimum_above_maximum(scaler: KubernetesObject, _: Surroundings) -> Iterator[Violation]:
    low, high = AUTOSCALERS[str(scaler.get("kind"))]
    least, most = mapping(scaler, "spec").get(low, 1), mapping(scaler, "spec").get(high)
    if isinstance(least, int) and isinstance(most, int) and least > most:
        message = f"{titled(scaler)} has {low}: {least} and {high}: {most}"
        yield Violation("autoscaler-range", ("spec", low), message)


def shares_without_request(scaler: KubernetesObject, surroundings: Surroundings) -> Iterator[Violation]:
    """Find metrics that are a share of a request, which a container of the target does not have."""
    workloads = surroundings.of_kinds(POD_TEMPLATES, scaler)
    targets = [candidate for candidate in workloads if (candidate.get("kind"), name_of(candidate)) == target_of(scaler)]
    for index, metric in enumerate(items(scaler, "spec", "metrics")):
        source = mapping(metric, "containerResource" if metric.get("type") == "ContainerResource" else "resource")
        name = str(source.get("name"))
        if part(source, "target", "type") != "Utilization":
            continue
        for workload in targets:
            for path, container in pod_containers(workload):
                # A limit without a request is one.
                requested = any(name in mapping(container, "resources", key) for key in ("requests", "limits"))
                if requested or source.get("container", container.get("name")) != container.get("name"):
                    continue
                what = f"container '{container.get('name')}'"
                message = f"{titled(scaler)} scales on the utilisation of {name}, but {what} of {titled(workload)} "
                other = (workload, path, f"{what} has no request of {name}")
                yield Violation(
                    "autoscaler-no-request", ("spec", "metrics", index), f"{message}requests none", name, other=other
                )
                break


def rivals(scaler: KubernetesObject, objects: Sequence[KubernetesObject]) -> Iterator[Violation]:
    """Find autoscalers of the same workload among those that stand before this one, or all if it is not listed."""
    owner = owner_of(scaler, objects)
    for other in objects:
        if other is scaler:
            return
        if other.get("kind") not in AUTOSCALERS or not in_one_namespace(scaler, other):
            continue
        is_same = titled(other) in (titled(scaler), titled(owner or {}))
        # KEDA's own is named by its ScaledObject.
        if target_of(other) == target_of(scaler) and not is_same and owner_of(other, objects) not in objects:
            kind, name = target_of(scaler)
            message = f"{titled(scaler)} and {titled(other)} scale {kind} '{name}'; each undoes what the other does"
            related = (other, ("spec",), titled(other))
            yield Violation("autoscaler-twice", ("spec", "scaleTargetRef"), message, other=related)


def _unowned_rivals(scaler: KubernetesObject, surroundings: Surroundings) -> Iterator[Violation]:
    if owner_of(scaler, surroundings.objects) is None:
        yield from rivals(scaler, surroundings.objects)


# ---- disruption budgets ----------------------------------------------------------------------------------------------


def _permits_no_eviction(budget: KubernetesObject, surroundings: Surroundings) -> Iterator[Violation]:
    spec = mapping(budget, "spec")
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    if str(most) in ("0", "0%"):
        path = ("spec", "maxUnavailable")
        yield Violation("pdb-blocks-drain", path, f"{titled(budget)} has maxUnavailable: {most}")
    elif least == "100%":
        yield Violation("pdb-blocks-drain", ("spec", "minAvailable"), f"{titled(budget)} has minAvailable: 100%")
    elif isinstance(least, int) and not items(spec, "selector", "matchExpressions"):
        for workload in surroundings.of_kinds(POD_TEMPLATES, budget):
            if not selects(mapping(spec, "selector", "matchLabels"), pod_labels(workload)):
                continue
            lowest = _lowest_replicas(workload, surroundings)
            if lowest is not None and least >= lowest[0]:
                replicas, other = lowest
                message = f"{titled(budget)} keeps {least} of {replicas} replicas of {titled(workload)}"
                yield Violation("pdb-blocks-drain", ("spec", "minAvailable"), message, other=other)


def _lowest_replicas(
    workload: KubernetesObject, surroundings: Surroundings
) -> tuple[int, tuple[KubernetesObject, ObjectPath, str]] | None:
    """Return the lowest number of replicas and where it is given: an autoscaler replaces that of the workload.

    None if it is not given: the autoscaler may be deployed elsewhere.
    """
    for scaler in surroundings.of_kinds(AUTOSCALERS, workload):
        if target_of(scaler) == (workload.get("kind"), name_of(workload)):
            key = AUTOSCALERS[str(scaler.get("kind"))][0]
            value = mapping(scaler, "spec").get(key, 1)
            if not isinstance(value, int):
                return None
            lowest = max(value, 1)  # an autoscaler to zero starts with one
            what = f"{titled(scaler)} scales {titled(workload)} down to {lowest}"
            return lowest, (scaler, ("spec", key), what)
    replicas = part(workload, "spec", "replicas")
    if not isinstance(replicas, int):
        return None
    return replicas, (workload, ("spec", "replicas"), f"{titled(workload)} has {replicas} replicas")


# ---- monitors --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scraped:
    """A Service, or the pods of a workload: what a monitor selects by labels, with the names of its ports."""

    source: KubernetesObject
    labels: Mapping[str, str]
    ports: tuple[str, ...]

    @classmethod
    def of(cls, source: KubernetesObject) -> "Scraped":
        """Return a Service or a workload as monitors see it."""
        if source.get("kind") == "Service":
            return cls(source, labels_of(mapping(source, "metadata")), port_names(items(source, "spec", "ports")))
        ports = [port for _, container in pod_containers(source) for port in items(container, "ports")]
        return cls(source, pod_labels(source), port_names(ports))


def _unscraped(monitor: KubernetesObject, surroundings: Surroundings) -> Iterator[Violation]:
    kinds: Collection[str] = ("Service",) if monitor.get("kind") == "ServiceMonitor" else POD_TEMPLATES
    others = [
        Scraped.of(document)
        for document in surroundings.objects
        if document.get("kind") in kinds and _sees(monitor, document)
    ]
    if any(matches(mapping(monitor, "spec", "selector"), other.labels) for other in others):
        yield from scrape_faults(monitor, others)
    else:  # what is deployed elsewhere may match: only what the monitor seems to mean is reported
        yield from scrape_faults(monitor, [other for other in others if _is_meant(monitor, other)])


def scrape_faults(monitor: KubernetesObject, others: Sequence[Scraped]) -> Iterator[Violation]:
    """Find that a monitor selects none of the Services or pods, or scrapes a port that those do not name."""
    selector, endpoints = mapping(monitor, "spec", "selector"), MONITORS[str(monitor.get("kind"))]
    selected = [other for other in others if matches(selector, other.labels)]
    if not selected and others:
        wanted, nearest = written_labels(mapping(selector, "matchLabels")), others[0]
        what, has = titled(nearest.source), written_labels(nearest.labels) or "no labels"
        message = f"{titled(monitor)} selects {wanted or 'labels'}, but {what} has {has}"
        cure = f"Add the labels to {what}: {wanted}" if wanted else ""
        other = (nearest.source, ("metadata",), f"{what} has {has}")
        yield Violation("monitor-selects-nothing", ("spec", "selector"), message, cure=cure, other=other)
    for index, endpoint in enumerate(items(monitor, "spec", endpoints)):
        port = str(endpoint.get("port", ""))
        if selected and port and not any(port in other.ports for other in selected):
            names, what = {name for other in selected for name in other.ports}, titled(selected[0].source)
            message = f"{titled(monitor)} scrapes port '{port}'; {what} names: {', '.join(sorted(names)) or 'none'}"
            ports = (selected[0].source, ("spec",), f"the ports of {what}")
            yield Violation("monitor-port", ("spec", endpoints, index, "port"), message, other=ports)


def _sees(monitor: KubernetesObject, other: KubernetesObject) -> bool:
    """Return whether a monitor searches the namespace of an object."""
    namespaces = mapping(monitor, "spec", "namespaceSelector")
    if namespaces.get("any"):
        return True
    names = namespaces.get("matchNames")
    if isinstance(names, list) and names:
        return namespace_of(other) in ("", *map(str, names))
    return in_one_namespace(monitor, other)


def _is_meant(monitor: KubernetesObject, other: Scraped) -> bool:
    """Return whether a monitor seems to be for an object: one has the other's name, and the port if there are names."""
    names = {str(value) for value in mapping(monitor, "spec", "selector", "matchLabels").values()}
    ports = {str(item["port"]) for item in items(monitor, "spec", MONITORS[str(monitor["kind"])]) if "port" in item}
    has_port = not ports or not other.ports or bool(ports & set(other.ports))
    return has_port and name_of(other.source) in {name_of(monitor), *names}


# Kinds of objects, and what yields the facts that an object ignores.
FACTS: tuple[tuple[Collection[str], Callable[[KubernetesObject, Surroundings], Iterator[Violation]]], ...] = (
    (AUTOSCALERS, unusable_metrics),
    (AUTOSCALERS, _minimum_above_maximum),
    (AUTOSCALERS, _unowned_rivals),
    ((HPA,), shares_without_request),
    (("PodDisruptionBudget",), _permits_no_eviction),
    (MONITORS, _unscraped),
)
