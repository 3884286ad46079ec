"""Check objects of Kubernetes together: Services, disruption budgets, autoscalers and what they refer to."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conch.base.kubernetes_parts import items, mapping, selects
from conch.check.deployment.workloads import Container, PodOwner
from conch.check.finding import Finding, Related
from conch.check.monitoring.objects import MonitoringObject
from conch.operate.scaling.doctor.facts import HPA, owner_of

_METRICS_PORT = 8002
# Kind → keys of the lowest and the highest number of replicas.
_AUTOSCALERS = {
    "HorizontalPodAutoscaler": ("minReplicas", "maxReplicas"),
    "ScaledObject": ("minReplicaCount", "maxReplicaCount"),
}
_PUBLIC = ("LoadBalancer", "NodePort")
_OPEN_CONTROL = ("explicit", "poll")
_RESTRICTIONS = ("http-restricted-api", "grpc-restricted-protocol", "api-key-file")


def check_together(objects: Sequence[MonitoringObject], workloads: Sequence[PodOwner]) -> Iterator[Finding]:
    """Check all objects of a path together. What is absent may be deployed elsewhere and is not reported."""
    autoscaled: dict[tuple[str, str], MonitoringObject] = {}
    scalers = [each for each in objects if each.kind in _AUTOSCALERS]
    for each in objects:
        if each.kind == "Service":
            yield from _service(each, workloads)
        elif each.kind == "PodDisruptionBudget":
            yield from _budget(each, workloads, scalers)
        elif each.kind in _AUTOSCALERS:
            yield from _autoscaler(each, workloads)
            if each.kind == HPA and owner_of(each.value, [scaler.value for scaler in scalers]):
                continue  # KEDA's own
            key = _target(each)
            first = autoscaled.setdefault(key, each)
            if first is not each and _same_namespace(first, each):
                message = f"{each.kind} '{each.name}' and {first.kind} '{first.name}' scale {key[0]} '{key[1]}'"
                related = Related(first.place("spec"), f"{first.kind} '{first.name}'")
                place = each.place("spec", "scaleTargetRef")
                yield Finding("autoscaler-twice", place, message, related=(related,))


def _service(service: MonitoringObject, workloads: Sequence[PodOwner]) -> Iterator[Finding]:
    selector = mapping(service.value, "spec", "selector")
    reachable = [each for each in workloads if _same_namespace(service, each.source)]
    selected = [each for each in reachable if selects(selector, each.labels)]
    if selector and not selected:
        named = [each for each in reachable if each.source.name == service.name]
        if named:
            wanted = ", ".join(f"{name}={value}" for name, value in selector.items())
            has = ", ".join(f"{name}={value}" for name, value in named[0].labels.items()) or "no labels"
            message = f"Service '{service.name}' selects {wanted}, but the pods of {named[0].what} have {has}"
            yield Finding("service-selects-nothing", service.place("spec", "selector"), message)
    containers = [container for each in selected for container in each.containers()]
    yield from _target_ports(service, containers)
    if mapping(service.value, "spec").get("type") in _PUBLIC:
        yield from _public(service, [each for each in containers if each.is_server])


def _target_ports(service: MonitoringObject, containers: Sequence[Container]) -> Iterator[Finding]:
    names = {str(port["name"]) for each in containers for port in each.ports if "name" in port}
    for index, port in enumerate(items(service.value, "spec", "ports")):
        target = port.get("targetPort")
        if containers and isinstance(target, str) and not target.isdecimal() and target not in names:
            listed = ", ".join(sorted(names)) or "none"
            message = f"Service '{service.name}' sends to port '{target}'; the selected pods name {listed}"
            yield Finding("port-unknown", service.place("spec", "ports", index, "targetPort"), message)


def _public(service: MonitoringObject, servers: Sequence[Container]) -> Iterator[Finding]:
    kind = mapping(service.value, "spec").get("type")
    ports = items(service.value, "spec", "ports")
    for index, port in enumerate(ports):
        if servers and (port.get("port") == _METRICS_PORT or port.get("name") == "metrics"):
            message = f"Service '{service.name}' of type {kind} exposes the metrics port"
            yield Finding("metrics-public", service.place("spec", "ports", index), message)
    for server in servers:
        mode = server.flag("model-control-mode")
        if mode in _OPEN_CONTROL and not any(server.flag(each) is not None for each in _RESTRICTIONS):
            message = (
                f"Service '{service.name}' of type {kind} exposes a server with --model-control-mode={mode}, without "
                "a restriction"
            )
            related = Related(server.place(), f"container '{server.name}'")
            yield Finding("control-public", service.place("spec", "type"), message, related=(related,))


def _budget(
    budget: MonitoringObject, workloads: Sequence[PodOwner], scalers: Sequence[MonitoringObject]
) -> Iterator[Finding]:
    spec = mapping(budget.value, "spec")
    least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
    if str(most) in ("0", "0%"):
        message = f"PodDisruptionBudget '{budget.name}' has maxUnavailable: {most}"
        yield Finding("pdb-blocks-drain", budget.place("spec", "maxUnavailable"), message)
    elif least == "100%":
        message = f"PodDisruptionBudget '{budget.name}' has minAvailable: 100%"
        yield Finding("pdb-blocks-drain", budget.place("spec", "minAvailable"), message)
    elif isinstance(least, int) and not items(spec, "selector", "matchExpressions"):
        wanted = mapping(spec, "selector", "matchLabels")
        for each in workloads:
            if not _same_namespace(budget, each.source) or not selects(wanted, each.labels):
                continue
            lowest = _lowest_replicas(each, scalers)
            if lowest is not None and least >= lowest[0]:
                replicas, related = lowest
                message = f"PodDisruptionBudget '{budget.name}' keeps {least} of {replicas} replicas of {each.what}"
                place = budget.place("spec", "minAvailable")
                yield Finding("pdb-blocks-drain", place, message, related=(related,))


def _lowest_replicas(workload: PodOwner, scalers: Sequence[MonitoringObject]) -> tuple[int, Related] | None:
    """Return the lowest number of replicas and where it is given: an autoscaler replaces that of the workload.

    None if nothing gives it: the autoscaler may be deployed elsewhere.
    """
    key = workload.source.kind, workload.source.name
    for each in scalers:
        if _target(each) == key and _same_namespace(each, workload.source):
            name = _AUTOSCALERS[each.kind][0]
            value = mapping(each.value, "spec").get(name, 1)
            if not isinstance(value, int):
                return None
            lowest = max(value, 1)  # an autoscaler to zero starts with one
            what = f"{each.kind} '{each.name}' scales {workload.what} down to {lowest}"
            return lowest, Related(each.place("spec", name), what)
    if workload.replicas is None:
        return None
    what = f"{workload.what} has {workload.replicas} replicas"
    return workload.replicas, Related(workload.source.place("spec", "replicas"), what)


def _target(scaler: MonitoringObject) -> tuple[str, str]:
    target = mapping(scaler.value, "spec", "scaleTargetRef")
    return str(target.get("kind", "Deployment")), str(target.get("name"))


def _autoscaler(scaler: MonitoringObject, workloads: Sequence[PodOwner]) -> Iterator[Finding]:
    spec = mapping(scaler.value, "spec")
    keys = _AUTOSCALERS[scaler.kind]
    least, most = spec.get(keys[0], 1), spec.get(keys[1])
    if isinstance(least, int) and isinstance(most, int) and least > most:
        message = f"{scaler.kind} '{scaler.name}' has {keys[0]}: {least} and {keys[1]}: {most}"
        yield Finding("autoscaler-range", scaler.place("spec", keys[0]), message)
    target = mapping(spec, "scaleTargetRef")
    for index, metric in enumerate(items(spec, "metrics")):
        resource = mapping(metric, "resource")
        name = resource.get("name")
        if metric.get("type") != "Resource" or mapping(resource, "target").get("type") != "Utilization":
            continue
        for each in workloads:
            is_target = each.source.kind == target.get("kind") and each.source.name == target.get("name")
            without = [one for one in each.containers() if not _requests(one.value, str(name))]
            if is_target and _same_namespace(scaler, each.source) and without:
                message = (
                    f"HorizontalPodAutoscaler '{scaler.name}' scales on the utilisation of {name}, but container "
                    f"'{without[0].name}' of {each.what} requests none"
                )
                related = Related(without[0].place(), f"container '{without[0].name}' has no request of {name}")
                place = scaler.place("spec", "metrics", index)
                yield Finding("autoscaler-no-request", place, message, related=(related,))


def _requests(container: Mapping[str, Any], resource: str) -> bool:
    """Whether a container requests a resource; a limit without a request is one."""
    return any(resource in mapping(container, "resources", key) for key in ("requests", "limits"))


def _same_namespace(one: MonitoringObject, other: MonitoringObject) -> bool:
    return not one.namespace or not other.namespace or one.namespace == other.namespace
