"""What is known of an autoscaler and of what it depends on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from conch.monitoring.object_parts import part

KubernetesObject: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SeriesFacts:
    """The labels of the current series of a metric in Prometheus, or why they could not be asked for."""

    labels: Sequence[Mapping[str, str]] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class ApiFacts:
    """What an API of metrics answers for a metric: the number of values, or why there are none."""

    values: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class AutoscalerFacts:
    """An autoscaler, the objects beside it, and what Prometheus and the API of metrics answer, where they were asked.

    `series` and `api` are by the metric's name. `adapter_rules` are those of prometheus-adapter, None if unknown.
    """

    autoscaler: KubernetesObject
    objects: Sequence[KubernetesObject] = ()
    adapter_rules: Sequence[Mapping[str, Any]] | None = None
    series: Mapping[str, SeriesFacts] = field(default_factory=dict)
    api: Mapping[str, ApiFacts] = field(default_factory=dict)


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
