"""The object that scales the fleet, read from the documents of a manifest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conch.base.errors import ConfigError
from conch.base.kubernetes.objects import listed
from conch.operate.fleet.policies.hpa_loop import HpaLoop, check_hpa
from conch.operate.fleet.policies.keda_loop import KedaLoop, check_scaled_object
from conch.operate.fleet.policies.scaling_loop import LoopContext, ScalingLoop
from conch.operate.scaling.hpa.read import read_hpa
from conch.operate.scaling.hpa.spec import HpaSpec
from conch.operate.scaling.keda.read import read_scaled_object
from conch.operate.scaling.keda.spec import ScaledObjectSpec

_KINDS = ("HorizontalPodAutoscaler", "ScaledObject")


@dataclass(frozen=True, slots=True)
class FleetPolicy:
    """A policy: the object, the HorizontalPodAutoscaler that it is or creates, and its namespace."""

    spec: HpaSpec | ScaledObjectSpec
    hpa: HpaSpec
    namespace: str = "default"

    @property
    def min_replicas(self) -> int:
        """The replicas without load."""
        return self.spec.min_replicas

    @property
    def release(self) -> str:
        """The name of the workload that it scales."""
        return self.hpa.target[1]

    def loop(self, context: LoopContext) -> ScalingLoop:
        """Return its loop."""
        return KedaLoop(self.spec, context) if isinstance(self.spec, ScaledObjectSpec) else HpaLoop(self.spec, context)


def read_policy(documents: Sequence[Any]) -> FleetPolicy:
    """Return the only HorizontalPodAutoscaler or ScaledObject of documents. Raises ConfigError."""
    found = [document for document in listed(documents) if document.get("kind") in _KINDS]
    if len(found) != 1:
        raise ConfigError(f"{len(found)} objects of the kinds {' and '.join(_KINDS)}, expected one")
    [document] = found
    namespace = str((document.get("metadata") or {}).get("namespace") or "default")
    if document["kind"] == "ScaledObject":
        scaled_object = read_scaled_object(document)
        check_scaled_object(scaled_object)
        return FleetPolicy(scaled_object, scaled_object.hpa(), namespace)
    hpa = read_hpa(document)
    check_hpa(hpa)
    return FleetPolicy(hpa, hpa, namespace)
