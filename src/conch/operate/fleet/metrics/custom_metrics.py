"""The custom.metrics.k8s.io API as prometheus-adapter answers it: rules, queries and objects. Pure.

Paths: `/apis/custom.metrics.k8s.io/<version>/namespaces/<namespace>/pods/<name or *>/<metric>`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any
from urllib.parse import unquote

from conch.operate.fleet.metrics.prometheus import SeriesValue
from conch.operate.scaling.quantity import format_quantity

GROUP = "custom.metrics.k8s.io"
VERSIONS = ("v1beta1", "v1beta2")
_SCHEMA_LABELS = {"<<.GroupBy>>": "pod"}


@dataclass(frozen=True, slots=True)
class MetricPath:
    """A request for a metric of pods. `pod` is "*" for all of the namespace."""

    version: str
    namespace: str
    pod: str
    metric: str


@dataclass(frozen=True, slots=True)
class AdapterRule:
    """A rule of prometheus-adapter for a metric of pods."""

    name: str
    metrics_query: str

    def query(self, namespace: str, pods: Sequence[str]) -> str:
        """Return the query for one value per pod."""
        one = f'pod="{pods[0]}"' if len(pods) == 1 else f'pod=~"{"|".join(pods)}"'
        filled = {"<<.LabelMatchers>>": f'namespace="{namespace}",{one}', "<<.Series>>": self.name, **_SCHEMA_LABELS}
        text = self.metrics_query
        for placeholder, value in filled.items():
            text = text.replace(placeholder, value)
        return text


def read_rules(documents: Sequence[Mapping[str, Any]]) -> dict[str, AdapterRule]:
    """Return the rules of an adapter's configuration by the metrics that they define."""
    rules = (AdapterRule(str(each["name"]["as"]), str(each["metricsQuery"])) for each in documents)
    return {each.name: each for each in rules}


def parse_path(path: str) -> MetricPath | None:
    """Return what a path asks for, None if it is not a metric of pods."""
    parts = unquote(path).strip("/").split("/")  # the API server unquotes first; Python's client quotes slashes
    if len(parts) != 8 or parts[:2] != ["apis", GROUP] or parts[2] not in VERSIONS:
        return None
    if (parts[3], parts[5]) != ("namespaces", "pods"):
        return None
    return MetricPath(parts[2], parts[4], parts[6], parts[7])


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Return whether labels fulfil a selector of equalities: `name=value,…`."""
    pairs = (each.replace("==", "=").partition("=") for each in selector.split(",") if each)
    return all(labels.get(name) == value for name, _, value in pairs)


def metric_values(asked: MetricPath, rows: Sequence[SeriesValue]) -> dict[str, Any]:
    """Return a MetricValueList with the finite values of a query."""
    return {
        "kind": "MetricValueList",
        "apiVersion": f"{GROUP}/{asked.version}",
        "metadata": {},
        "items": [_item(asked, row) for row in rows if isfinite(row.value) and "pod" in row.labels],
    }


def _item(asked: MetricPath, row: SeriesValue) -> dict[str, Any]:
    name = {"metricName": asked.metric} if asked.version == "v1beta1" else {"metric": {"name": asked.metric}}
    return {
        "describedObject": {
            "kind": "Pod",
            "namespace": asked.namespace,
            "name": row.labels["pod"],
            "apiVersion": "/v1",
        },
        **name,
        "timestamp": datetime.fromtimestamp(row.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "value": format_quantity(row.value),
        **({"selector": None} if asked.version == "v1beta1" else {}),
    }


def resource_list(version: str, metrics: Sequence[str]) -> dict[str, Any]:
    """Return the APIResourceList by which clients discover the metrics."""
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{version}",
        "resources": [
            {
                "name": f"pods/{name}",
                "singularName": "",
                "namespaced": True,
                "kind": "MetricValueList",
                "verbs": ["get"],
            }
            for name in metrics
        ],
    }


def failure(code: int, reason: str, message: str) -> dict[str, Any]:
    """Return the Status of a failed request."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def not_found(metric: str) -> dict[str, Any]:
    """Return the adapter's answer for a metric without series."""
    return failure(404, "NotFound", f"the server could not find the metric {metric} for pods")
