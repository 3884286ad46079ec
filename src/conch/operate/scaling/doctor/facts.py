"""What is known of an autoscaler and of what it depends on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from conch.base.kubernetes_parts import items, part

KubernetesObject: TypeAlias = Mapping[str, Any]
HPA = "HorizontalPodAutoscaler"
_KEDA_PREFIX = "keda-hpa-"


@dataclass(frozen=True, slots=True)
class SeriesFacts:
    """The labels of the current series of a metric in Prometheus, or why they could not be asked for."""

    labels: Sequence[Mapping[str, str]] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class ApiFacts:
    """What an API of metrics answers for a metric: the number of values, or why there are none.

    `pods` are those with a value, None for a metric that is not of pods; `shown` has its values.
    """

    values: int = 0
    error: str = ""
    pods: frozenset[str] | None = None
    shown: str = ""


@dataclass(frozen=True, slots=True)
class AutoscalerFacts:
    """An autoscaler, the objects beside it, and what Prometheus and the API of metrics answer, where they were asked.

    `series` and `api` are by the metric's name. `adapter_rules` are those of prometheus-adapter, None if unknown.
    `ready_pods` are names of pods of the target, None if unknown.
    """

    autoscaler: KubernetesObject
    objects: Sequence[KubernetesObject] = ()
    adapter_rules: Sequence[Mapping[str, Any]] | None = None
    series: Mapping[str, SeriesFacts] = field(default_factory=dict)
    api: Mapping[str, ApiFacts] = field(default_factory=dict)
    ready_pods: frozenset[str] | None = None


class LinkState(Enum):
    """Whether a link of the way holds."""

    OK = "ok"
    BROKEN = "broken"
    UNKNOWN = "unknown"  # neither the files nor a server say


@dataclass(frozen=True, slots=True)
class Link:
    """A link of the way of a metric: which metric, which link, its state, what was found, and what to do."""

    metric: str
    stage: str
    state: LinkState
    text: str
    remedy: str = ""


def name_of(found: KubernetesObject) -> str:
    """Return the name of an object."""
    return str(part(found, "metadata", "name") or "")


def hpa_of(scaled_object: KubernetesObject) -> str:
    """Return the name of the HorizontalPodAutoscaler that KEDA creates for a ScaledObject."""
    name = part(scaled_object, "spec", "advanced", "horizontalPodAutoscalerConfig", "name")
    return str(name or f"{_KEDA_PREFIX}{name_of(scaled_object)}")


def owner_of(autoscaler: KubernetesObject, objects: Sequence[KubernetesObject]) -> KubernetesObject | None:
    """Return the ScaledObject for which KEDA created an autoscaler, None if it is another's."""
    owners = {
        str(owner.get("name"))
        for owner in items(autoscaler, "metadata", "ownerReferences")
        if owner.get("kind") == "ScaledObject"
    }
    found = [other for other in objects if other.get("kind") == "ScaledObject" and in_one_namespace(autoscaler, other)]
    return next(
        (other for other in found if name_of(other) in owners or hpa_of(other) == name_of(autoscaler)),
        {"kind": "ScaledObject", "metadata": {"name": min(owners)}} if owners else None,
    )


def in_one_namespace(one: KubernetesObject, other: KubernetesObject) -> bool:
    """Whether two objects may be in the same namespace. Manifests need not name theirs."""
    namespaces = {part(each, "metadata", "namespace") for each in (one, other)} - {None, ""}
    return len(namespaces) < 2
