"""What the API server of a cluster says of autoscalers: objects, pods, values of the APIs of metrics."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from conch.base.errors import ConfigError
from conch.base.kubernetes.api import ApiServerAddress, KubernetesApi, KubernetesError
from conch.base.kubernetes.objects import items, mapping, part
from conch.operate.scaling.diagnosis import ApiFacts
from conch.operate.scaling.kubernetes_facts import HPA

_NOT_FOUND = 404
_RESOURCES = ("Resource", "ContainerResource")
_KINDS = {  # path and kind of its items
    "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers": HPA,
    "/apis/apps/v1/namespaces/{}/deployments": "Deployment",
    "/apis/apps/v1/namespaces/{}/statefulsets": "StatefulSet",
    "/api/v1/namespaces/{}/services": "Service",
    "/apis/monitoring.coreos.com/v1/namespaces/{}/podmonitors": "PodMonitor",
    "/apis/monitoring.coreos.com/v1/namespaces/{}/servicemonitors": "ServiceMonitor",
    "/apis/monitoring.coreos.com/v1/namespaces/{}/prometheusrules": "PrometheusRule",
    "/apis/keda.sh/v1alpha1/namespaces/{}/scaledobjects": "ScaledObject",
}


class ClusterFacts:
    """One namespace of a cluster. `unread` has what the API server refused, for the user."""

    def __init__(self, url: str, namespace: str) -> None:
        try:
            self._api = KubernetesApi(ApiServerAddress.of_url(url))
        except ConfigError as error:
            raise ConfigError(f"--api: {error.message}") from None
        self._url = url
        self._namespace = namespace
        self.unread: list[str] = []

    def objects(self) -> list[dict[str, Any]]:
        """Return the objects of the namespace; kinds that the cluster does not have are omitted. Raises ConfigError."""
        found: list[dict[str, Any]] = []
        for path, kind in _KINDS.items():
            try:
                answer = self._api.get(path.format(quote(self._namespace)))
            except KubernetesError as error:
                if kind == HPA:
                    hint = "" if error.status else "; is kubectl proxy running?"
                    raise ConfigError(f"--api: {self._url} cannot be read: {error}{hint}") from None
                if error.status != _NOT_FOUND:
                    self.unread.append(str(error))
                continue
            # Items of a list have neither kind nor version.
            version = path.partition("/namespaces")[0].removeprefix("/apis/").removeprefix("/api/")
            found += [{**item, "kind": kind, "apiVersion": version} for item in items(answer, "items")]
        return found

    def ready_pods(self, workload: Mapping[str, Any]) -> frozenset[str] | None:
        """Return the names of the ready pods of a workload; None if they cannot be read."""
        selector = selector_text(mapping(workload, "spec", "selector"))
        try:
            answer = self._api.get(f"/api/v1/namespaces/{quote(self._namespace)}/pods", labelSelector=selector)
        except KubernetesError as error:
            self.unread.append(str(error))
            return None
        return frozenset(str(part(pod, "metadata", "name")) for pod in items(answer, "items") if _is_ready(pod))

    def metric(self, metric: Mapping[str, Any], workload: Mapping[str, Any] | None) -> ApiFacts:
        """Return what the API of a metric of `spec.metrics` answers to the question that the controller asks."""
        kind = str(metric.get("type"))
        source = mapping(metric, kind[:1].lower() + kind[1:])
        namespace = f"namespaces/{quote(self._namespace)}"
        name = quote(str(part(source, "metric", "name") or ""), safe=":")
        selectors = {
            "labelSelector": selector_text(mapping(workload, "spec", "selector")),
            "metricLabelSelector": selector_text(mapping(source, "metric", "selector")),
        }
        asked: tuple[str, ...]
        if kind in _RESOURCES:
            path, asked = f"metrics.k8s.io/v1beta1/{namespace}/pods", ("labelSelector",)
        elif kind == "Pods":
            path = f"custom.metrics.k8s.io/v1beta1/{namespace}/pods/*/{name}"
            asked = ("labelSelector", "metricLabelSelector")
        elif kind == "Object":
            described = _resource(mapping(source, "describedObject"))
            path, asked = f"custom.metrics.k8s.io/v1beta1/{namespace}/{described}/{name}", ("metricLabelSelector",)
        else:
            path, asked = f"external.metrics.k8s.io/v1beta1/{namespace}/{name}", ("labelSelector",)
            selectors["labelSelector"] = selectors["metricLabelSelector"]
        try:
            answer = self._api.get(f"/apis/{path}", **{key: selectors[key] for key in asked if selectors[key]})
        except KubernetesError as error:
            return ApiFacts(error=str(error))
        values = items(answer, "items")
        if kind in (*_RESOURCES, "Pods"):
            place = ("metadata", "name") if kind in _RESOURCES else ("describedObject", "name")
            return ApiFacts(len(values), pods=frozenset(str(part(value, *place)) for value in values))
        return ApiFacts(len(values), shown=", ".join(str(value.get("value")) for value in values))


def selector_text(selector: Mapping[str, Any]) -> str:
    """Return a LabelSelector as a query of the API has it."""
    return ",".join(_requirements(selector))


def _requirements(selector: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{name}={value}" for name, value in mapping(selector, "matchLabels").items())
    for expression in items(selector, "matchExpressions"):
        name, operator = str(expression.get("key")), str(expression.get("operator"))
        values = ",".join(str(value) for value in expression.get("values") or ())
        if operator in {"In", "NotIn"}:
            yield f"{name} {operator.lower()} ({values})"
        else:
            yield f"!{name}" if operator == "DoesNotExist" else name


def _resource(described: Mapping[str, Any]) -> str:
    """Return the path of an object: its plural with its group, and its name."""
    kind, name = str(described.get("kind")).lower(), quote(str(described.get("name")))
    if kind == "namespace":
        return "metrics"
    group = str(described.get("apiVersion") or "").rpartition("/")[0]
    plural = f"{kind}es" if kind.endswith("s") else f"{kind}s"
    return f"{plural}.{group}/{name}" if group else f"{plural}/{name}"


def _is_ready(pod: Mapping[str, Any]) -> bool:
    return part(pod, "metadata", "deletionTimestamp") is None and any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in items(pod, "status", "conditions")
    )
