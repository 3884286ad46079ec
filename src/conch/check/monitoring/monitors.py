"""Check ServiceMonitors and PodMonitors against the Services and pods in the same files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conch.base.kubernetes_parts import items, labels_of, mapping
from conch.check.finding import Finding, Related
from conch.check.monitoring.objects import MonitoringObject

_WORKLOADS = ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "Job")
_ENDPOINTS = {"ServiceMonitor": "endpoints", "PodMonitor": "podMetricsEndpoints"}


@dataclass(frozen=True, slots=True)
class _Selectable:
    """A Service, or the pods of a workload: what a monitor selects by labels, with the names of its ports."""

    source: MonitoringObject
    labels: dict[str, str]
    ports: tuple[str, ...]
    what: str


def check_monitors(objects: Sequence[MonitoringObject]) -> Iterator[Finding]:
    """Check that each monitor selects something that has the port."""
    services = [_service(each) for each in objects if each.kind == "Service"]
    pods = [_pods(each) for each in objects if each.kind in _WORKLOADS]
    for monitor in objects:
        if monitor.kind == "ServiceMonitor":
            yield from _check(monitor, services)
        elif monitor.kind == "PodMonitor":
            yield from _check(monitor, pods)


def _check(monitor: MonitoringObject, candidates: Sequence[_Selectable]) -> Iterator[Finding]:
    selector = mapping(monitor.value, "spec", "selector")
    reachable = [each for each in candidates if _sees(monitor, each.source)]
    selected = [each for each in reachable if _matches(selector, each.labels)]
    ports = [str(each["port"]) for each in items(monitor.value, "spec", _ENDPOINTS[monitor.kind]) if "port" in each]
    if not selected:
        # What is deployed elsewhere may match: only something that the monitor seems to mean is reported.
        meant = [each for each in reachable if _is_meant(monitor, selector, each, ports)]
        if meant:
            wanted = ", ".join(f"{name}={value}" for name, value in mapping(selector, "matchLabels").items())
            nearest = meant[0]
            has = ", ".join(f"{name}={value}" for name, value in nearest.labels.items()) or "no labels"
            message = f"{monitor.kind} '{monitor.name}' selects {wanted or 'labels'}, but {nearest.what} has {has}"
            related = Related(nearest.source.place("metadata"), f"{nearest.what} has {has}")
            cure = f"Add the labels to {nearest.what}: {wanted}" if wanted else ""
            place = monitor.place("spec", "selector")
            yield Finding("monitor-selects-nothing", place, message, cure, (related,))
        return
    for index, port in enumerate(ports):
        if not any(port in each.ports for each in selected):
            names = ", ".join(sorted({name for each in selected for name in each.ports})) or "none"
            message = f"{monitor.kind} '{monitor.name}' scrapes port '{port}'; {selected[0].what} names: {names}"
            place = monitor.place("spec", _ENDPOINTS[monitor.kind], index, "port")
            related = Related(selected[0].source.place("spec"), f"the ports of {selected[0].what}")
            yield Finding("monitor-port", place, message, related=(related,))


def _service(source: MonitoringObject) -> _Selectable:
    ports = tuple(str(port["name"]) for port in items(source.value, "spec", "ports") if "name" in port)
    return _Selectable(source, source.labels, ports, f"Service '{source.name}'")


def _pods(source: MonitoringObject) -> _Selectable:
    template = mapping(source.value, "spec", "template")
    ports = tuple(
        str(port["name"])
        for container in items(template, "spec", "containers")
        for port in items(container, "ports")
        if "name" in port
    )
    labels = labels_of(mapping(template, "metadata"))
    return _Selectable(source, labels, ports, f"{source.kind} '{source.name}'")


def _sees(monitor: MonitoringObject, other: MonitoringObject) -> bool:
    """Return whether a monitor searches the namespace of an object."""
    namespaces = mapping(monitor.value, "spec", "namespaceSelector")
    if namespaces.get("any"):
        return True
    names = namespaces.get("matchNames")
    if isinstance(names, list) and names:
        return not other.namespace or other.namespace in map(str, names)
    return not monitor.namespace or not other.namespace or monitor.namespace == other.namespace


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    for name, value in mapping(selector, "matchLabels").items():
        if labels.get(str(name)) != str(value):
            return False
    for each in items(selector, "matchExpressions"):
        name, operator, values = str(each.get("key")), each.get("operator"), [str(v) for v in each.get("values") or []]
        fulfilled = {
            "In": labels.get(name) in values,
            "NotIn": labels.get(name) not in values,
            "Exists": name in labels,
            "DoesNotExist": name not in labels,
        }
        if not fulfilled.get(str(operator), True):
            return False
    return True


def _is_meant(
    monitor: MonitoringObject, selector: dict[str, Any], candidate: _Selectable, ports: Sequence[str]
) -> bool:
    """Return whether a monitor seems to be for an object: one has the other's name, and the port if there are names."""
    name = candidate.source.name
    values = {str(value) for value in mapping(selector, "matchLabels").values()}
    has_port = not ports or not candidate.ports or bool(set(ports) & set(candidate.ports))
    return has_port and name in {monitor.name, *values}
