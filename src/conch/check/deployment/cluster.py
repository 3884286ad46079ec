"""Check objects of Kubernetes together: Services, and the facts that they share with `conch autoscale doctor`."""

from collections.abc import Collection, Iterator, Sequence

from conch.base.kubernetes.objects import items, mapping, selects
from conch.check.deployment.objects import CheckedObject, Container, PodOwner
from conch.check.finding import Finding, Related
from conch.operate.scaling.kubernetes_facts import Surroundings, in_one_namespace, violations

_METRICS_PORT = 8002
_PUBLIC = ("LoadBalancer", "NodePort")
_OPEN_CONTROL = ("explicit", "poll")
_RESTRICTIONS = ("http-restricted-api", "grpc-restricted-protocol", "api-key-file")


def check_facts(objects: Sequence[CheckedObject], recorded: Collection[str]) -> Iterator[Finding]:
    """Find objects that ignore a fact of Kubernetes. `recorded` are names of series that rules record."""
    checked = {id(source.value): source for source in objects}
    surroundings = Surroundings([source.value for source in objects], recorded)
    for source in objects:
        for violation in violations(source.value, surroundings):
            related: tuple[Related, ...] = ()
            if violation.other is not None:
                value, path, what = violation.other
                related = (Related(checked[id(value)].place(*path), what),)
            place = source.place(*violation.path)
            yield Finding(violation.fact, place, violation.message, violation.cure, related)


def check_services(objects: Sequence[CheckedObject], workloads: Sequence[PodOwner]) -> Iterator[Finding]:
    """Check Services with the workloads that they select. What is absent may be deployed elsewhere: not reported."""
    for source in objects:
        if source.kind == "Service":
            yield from _service(source, workloads)


def _service(service: CheckedObject, workloads: Sequence[PodOwner]) -> Iterator[Finding]:
    selector = mapping(service.value, "spec", "selector")
    reachable = [workload for workload in workloads if in_one_namespace(service.value, workload.source.value)]
    selected = [workload for workload in reachable if selects(selector, workload.labels)]
    if selector and not selected:
        named = [workload for workload in reachable if workload.source.name == service.name]
        if named:
            wanted = ", ".join(f"{name}={value}" for name, value in selector.items())
            has = ", ".join(f"{name}={value}" for name, value in named[0].labels.items()) or "no labels"
            message = f"Service '{service.name}' selects {wanted}, but the pods of {named[0].what} have {has}"
            yield Finding("service-selects-nothing", service.place("spec", "selector"), message)
    containers = [container for workload in selected for container in workload.containers()]
    yield from _target_ports(service, containers)
    if mapping(service.value, "spec").get("type") in _PUBLIC:
        yield from _public(service, [container for container in containers if container.is_server])


def _target_ports(service: CheckedObject, containers: Sequence[Container]) -> Iterator[Finding]:
    names = {str(port["name"]) for container in containers for port in container.ports if "name" in port}
    for index, port in enumerate(items(service.value, "spec", "ports")):
        target = port.get("targetPort")
        if containers and isinstance(target, str) and not target.isdecimal() and target not in names:
            listed = ", ".join(sorted(names)) or "none"
            message = f"Service '{service.name}' sends to port '{target}'; the selected pods name {listed}"
            yield Finding("port-unknown", service.place("spec", "ports", index, "targetPort"), message)


def _public(service: CheckedObject, servers: Sequence[Container]) -> Iterator[Finding]:
    kind = mapping(service.value, "spec").get("type")
    ports = items(service.value, "spec", "ports")
    for index, port in enumerate(ports):
        if servers and (port.get("port") == _METRICS_PORT or port.get("name") == "metrics"):
            message = f"Service '{service.name}' of type {kind} exposes the metrics port"
            yield Finding("metrics-public", service.place("spec", "ports", index), message)
    for server in servers:
        mode = server.flag("model-control-mode")
        if mode in _OPEN_CONTROL and not any(server.flag(restriction) is not None for restriction in _RESTRICTIONS):
            message = (
                f"Service '{service.name}' of type {kind} exposes a server with --model-control-mode={mode}, without "
                "a restriction"
            )
            related = Related(server.place(), f"container '{server.name}'")
            yield Finding("control-public", service.place("spec", "type"), message, related=(related,))
