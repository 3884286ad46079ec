"""All metrics: the definitions of every module of this package."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType, ModuleType

import conch.domain.metrics
from conch.domain.metrics.metric import MetricDefinition

_NOT_AREAS = ("catalog", "metric", "reference")


@cache
def all_metrics() -> Mapping[str, MetricDefinition]:
    """Return all metrics by name, in the order of definition. Raises ValueError for a name that is defined twice."""
    found: dict[str, MetricDefinition] = {}
    for module in areas():
        for metric in metrics_of(module):
            if found.setdefault(metric.name, metric) is not metric:
                raise ValueError(f"{module.__name__}: the metric {metric.name} is defined elsewhere too")
    return MappingProxyType(found)


def areas() -> list[ModuleType]:
    """Return the modules that define metrics. Those of Triton, the server and language models are first."""
    names = [module.name for module in iter_modules(conch.domain.metrics.__path__) if module.name not in _NOT_AREAS]
    first = ["triton", "server", "vllm"]
    names.sort(key=lambda name: (first.index(name) if name in first else len(first), name))
    return [import_module(f"conch.domain.metrics.{name}") for name in names]


def metrics_of(area: ModuleType) -> list[MetricDefinition]:
    """Return the metrics that a module defines: its constants, alone or in tuples."""
    found: list[MetricDefinition] = []
    for value in vars(area).values():
        for metric in value if isinstance(value, tuple) else (value,):
            if isinstance(metric, MetricDefinition) and metric not in found:
                found.append(metric)
    return found
