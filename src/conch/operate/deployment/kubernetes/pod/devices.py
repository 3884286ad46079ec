"""Devices of the pods: resources, and the nodes that have them."""

from typing import Any

from conch.operate.deployment.values.deployment import DeploymentValues
from conch.operate.deployment.values.pod.accelerator import AcceleratorValues

_STRATEGY_LABEL = "nvidia.com/gpu.sharing-strategy"


def device_resource(accelerator: AcceleratorValues) -> str:
    """Return the name of the resource that a pod asks for."""
    if accelerator.sharing == "mig":
        return f"nvidia.com/mig-{accelerator.mig_profile}"
    return f"{accelerator.resource}.shared" if accelerator.is_shared else accelerator.resource


def device_count(values: DeploymentValues) -> int:
    """Return how many devices each pod asks for."""
    accelerator = values.accelerator
    if accelerator.sharing == "all-devices":
        return 0
    split = values.parallelism.tensor * values.parallelism.pipeline
    needed = split if split > 1 or accelerator.products or accelerator.sharing != "none" else 0
    return accelerator.count or needed


def resources(values: DeploymentValues) -> dict[str, Any]:
    """Return requests and limits of the server with its devices."""
    count = device_count(values)
    if not count:
        return values.resources
    limits = {**values.resources.get("limits", {}), device_resource(values.accelerator): count}
    return {**values.resources, "limits": limits}


def tolerations(values: DeploymentValues) -> list[dict[str, Any]]:
    """Return the tolerations of values, and of the taint of nodes with devices."""
    found = list(values.tolerations)
    if device_count(values) and values.accelerator.tolerate:
        found.append({"key": values.accelerator.resource, "operator": "Exists", "effect": "NoSchedule"})
    return found


def affinity(values: DeploymentValues) -> dict[str, Any]:
    """Return the affinity of values, with that to nodes with the right devices."""
    accelerator = values.accelerator
    expressions = []
    if accelerator.products:
        expressions.append({"key": accelerator.product_label, "operator": "In", "values": list(accelerator.products)})
    if accelerator.is_shared:
        expressions.append({"key": _STRATEGY_LABEL, "operator": "In", "values": [accelerator.sharing]})
    if not expressions:
        return values.affinity
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {**values.affinity, "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
