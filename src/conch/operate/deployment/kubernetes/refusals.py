"""Values that are valid for the chart, but of which the API server refuses the objects, or KEDA's webhook.

The template `_refusals.tpl` of the chart has the same checks with the same messages.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conch.operate.deployment.kubernetes.pod.devices import resources
from conch.operate.deployment.kubernetes.pod.server_container import environment
from conch.operate.deployment.kubernetes.pod.volumes import CACHE, MODELS, mounts, volumes
from conch.operate.deployment.values.deployment import DeploymentValues
from conch.operate.deployment.values.scaling.autoscaling import AutoscalingValues
from conch.operate.deployment.values.section import MAX_INT32

_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_FACTORS = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3}
_FACTORS |= {letter: 1000.0**power for power, letter in enumerate("MGTPE", 2)}
_FACTORS |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)}
_ROUNDING = 1e-9
_MAX_STABILIZATION_S, _MAX_PERIOD_S = 3600, 1800


def refusals(values: DeploymentValues) -> Iterator[str]:
    """Yield what the API server would refuse: the keys, and what would be right. The quantities are valid."""
    workload = values.workload
    rolls = workload.kind == "Deployment" and workload.update_strategy == "RollingUpdate"
    if rolls and {str(workload.max_unavailable), str(workload.max_surge)} <= {"0", "0%"}:
        yield "workload.maxUnavailable and workload.maxSurge are 0, so no pod can be replaced; set one of them to 1"
    yield from _resources(values)
    yield from _containers(values)
    yield from _volumes(values)
    yield from _named_parts(values)
    if values.autoscaling.type != "none":
        yield from _autoscaling(values.autoscaling)


def _resources(values: DeploymentValues) -> Iterator[str]:
    given = resources(values)
    requests, limits = given.get("requests") or {}, given.get("limits") or {}
    for name, request in sorted(requests.items()):
        limit = limits.get(name)
        if limit is not None and _amount(request) > _amount(limit) * (1 + _ROUNDING):
            yield f"resources.requests.{name} {request} exceeds resources.limits.{name} {limit}"
        elif "/" in name and (limit is None or _amount(request) < _amount(limit) * (1 - _ROUNDING)):
            yield f"resources.requests.{name} {request} needs the same amount in resources.limits, as it is a device"
    claims = [str(claim.get("name")) for claim in _mappings(values.pod_spec.get("resourceClaims"))]
    for claim in _mappings(given.get("claims")):
        if str(claim.get("name")) not in claims:
            yield f"resources.claims: '{claim.get('name')}' is not in podSpec.resourceClaims; add it there"
    if values.autoscaling.type != "none":
        for metric in values.autoscaling.resources:
            if metric.name not in requests and metric.name not in limits:
                yield f"autoscaling.resources: {metric.name} needs resources.requests.{metric.name}"


def _amount(quantity: object) -> float:
    """Return the number of a valid quantity."""
    text = str(quantity)
    number = _NUMBER.match(text)
    assert number is not None, text
    return float(number[0]) * _FACTORS[text[number.end() :]]


def _containers(values: DeploymentValues) -> Iterator[str]:
    names = ["server", *([MODELS] if values.model_repository.pull else [])]
    yield from _repeated("extraContainers", "name", names, values.extra_containers)
    names += [str(container.get("name")) for container in values.extra_containers]
    yield from _repeated("extraInitContainers", "name", names, values.extra_init_containers)


def _volumes(values: DeploymentValues) -> Iterator[str]:
    own = [CACHE, *(str(volume["name"]) for volume in volumes(values)[: -len(values.extra_volumes) or None])]
    yield from _repeated("extraVolumes", "name", own, values.extra_volumes)
    paths = [str(mount["mountPath"]) for mount in mounts(values)[: -len(values.extra_volume_mounts) or None]]
    yield from _repeated("extraVolumeMounts", "mountPath", paths, values.extra_volume_mounts)
    for mount in values.extra_volume_mounts:
        if mount.get("name") not in [*own, *(volume.get("name") for volume in values.extra_volumes)]:
            yield f"extraVolumeMounts: '{mount.get('name')}' is not a volume of the pod; add it to extraVolumes"


def _named_parts(values: DeploymentValues) -> Iterator[str]:
    """Yield repeated names of lists that server-side apply, and so Helm 4, merges by name."""
    given = [{"name": variable.name} for variable in values.environment]
    secret = [{"name": variable.name} for variable in values.secret_environment]
    names = [str(variable["name"]) for variable in environment(values)]
    own = names[: len(names) - len(given) - len(secret)]
    yield from _repeated("environment", "name", own, given)
    yield from _repeated("secretEnvironment", "name", names[: len(names) - len(secret)], secret)
    yield from _repeated("image.pullSecrets", "name", (), [{"name": each.name} for each in values.image.pull_secrets])
    keys = [{"topologyKey": key} for key in values.topology_spread.topology_keys]
    yield from _repeated("topologySpread.topologyKeys", "topologyKey", (), keys)
    triggers = [trigger for trigger in values.autoscaling.keda.triggers if trigger.get("name")]
    yield from _repeated("autoscaling.keda.triggers", "name", (), triggers)


def _repeated(place: str, key: str, taken: Sequence[str], given: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is wrong with names that must differ from those that are taken, and among themselves."""
    names: list[str] = []
    for part in given:
        name = part.get(key)
        if not name:
            yield f"{place}: an entry has no {key}"
        elif name in taken:
            yield f"{place}: {key} '{name}' is used by the pod already; use another one"
        elif name in names:
            yield f"{place}: {key} '{name}' is given twice"
        names.append(str(name))


def _autoscaling(scaling: AutoscalingValues) -> Iterator[str]:
    directions = {"scaleDown": scaling.behavior.scale_down, "scaleUp": scaling.behavior.scale_up}
    for name, rules in directions.items():
        place = f"autoscaling.behavior.{name}"
        yield from _bounded(place, rules, "stabilizationWindowSeconds", 0, _MAX_STABILIZATION_S)
        for policy in _mappings(rules.get("policies")):
            yield from _bounded(f"{place}.policies", policy, "periodSeconds", 1, _MAX_PERIOD_S)
            yield from _bounded(f"{place}.policies", policy, "value", 1, MAX_INT32)
    for index, trigger in enumerate(scaling.keda.triggers if scaling.type == "keda" else ()):
        place = f"autoscaling.keda.triggers[{index}]"
        metadata = trigger.get("metadata")
        if not trigger.get("type") or not isinstance(metadata, dict):
            yield f"{place} needs type and metadata, such as {{type: cron, metadata: {{timezone: UTC}}}}"
        else:
            for name, value in sorted(metadata.items()):
                if not isinstance(value, str):
                    yield f"{place}.metadata.{name} is not a text; quote it"


def _bounded(place: str, rules: Mapping[str, Any], name: str, least: int, most: int) -> Iterator[str]:
    value = rules.get(name)
    if value is not None and not (re.fullmatch("[0-9]{1,10}", str(value)) and least <= int(value) <= most):
        yield f"{place}.{name}: {value} is not an integer from {least} to {most}"


def _mappings(parts: object) -> list[Mapping[str, Any]]:
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list | tuple) else []
