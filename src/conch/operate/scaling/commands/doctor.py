"""`conch autoscale doctor`: find out why an autoscaler shows <unknown>, or only scales up."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from conch.base.command_line.files import parse_yaml, read_text
from conch.base.command_line.say import say
from conch.base.errors import ConfigError, Unavailable
from conch.base.http.prometheus import ask_prometheus
from conch.base.kubernetes.api import ApiServerAddress, KubernetesApi, KubernetesError
from conch.base.kubernetes.objects import items, listed, mapping, part
from conch.base.yaml_documents import YamlError, load_documents
from conch.operate.scaling.commands.flags import DoctorSettings
from conch.operate.scaling.diagnosis import ApiFacts, AutoscalerFacts, Link, LinkState, SeriesFacts, diagnose
from conch.operate.scaling.kubernetes_facts import HPA, hpa_of, name_of, owner_of

_BROKEN_STATUS = 1
_SIGNS = {LinkState.OK: "ok", LinkState.BROKEN: "broken", LinkState.UNKNOWN: "?"}
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
        objects: list[dict[str, Any]] = []
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
            objects += [{**item, "kind": kind, "apiVersion": version} for item in items(answer, "items")]
        return objects

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
            described = _resource_path(mapping(source, "describedObject"))
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


def _resource_path(described: Mapping[str, Any]) -> str:
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


def doctor(given: DoctorSettings) -> int:
    """Print the links of each autoscaler; return 1 if one is broken, else 0. Raises ConfigError."""
    objects = [document for file in given.files for document in _documents(file)]
    cluster = ClusterFacts(given.api, given.namespace) if given.api else None
    if cluster is not None:
        objects += cluster.objects()
    autoscalers = [
        document for document in objects if document.get("kind") == HPA and _is_wanted(document, given.name, objects)
    ]
    if not autoscalers:
        raise ConfigError(_missing(objects, given))
    adapter = _adapter_rules(objects)
    links: dict[str, list[Link]] = {}
    for autoscaler in autoscalers:
        facts = _facts(autoscaler, objects, adapter, cluster, given)
        links[_title(autoscaler, autoscalers)] = diagnose(facts)
    _print(links, as_json=given.json)
    for refusal in cluster.unread if cluster is not None else ():
        say(f"conch autoscale doctor: --api: {refusal}")
    broken = any(link.state is LinkState.BROKEN for name in links for link in links[name])
    return _BROKEN_STATUS if broken else 0


def _title(autoscaler: Mapping[str, Any], all_of_them: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of an autoscaler, with its namespace if others have the same name."""
    name = str(part(autoscaler, "metadata", "name"))
    if sum(part(other, "metadata", "name") == name for other in all_of_them) == 1:
        return name
    return f"{part(autoscaler, 'metadata', 'namespace') or 'default'}/{name}"


def _is_wanted(autoscaler: Mapping[str, Any], name: str, objects: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether an autoscaler has the name, or KEDA created it for a ScaledObject of the name."""
    owner = owner_of(autoscaler, objects)
    return name in {"", name_of(autoscaler), "" if owner is None else name_of(owner)}


def _facts(
    autoscaler: Mapping[str, Any],
    objects: Sequence[Mapping[str, Any]],
    adapter: Sequence[Mapping[str, Any]] | None,
    cluster: ClusterFacts | None,
    given: DoctorSettings,
) -> AutoscalerFacts:
    """Return what is known of an autoscaler, with what Prometheus and the API server answer if they are asked."""
    target = mapping(autoscaler, "spec", "scaleTargetRef")
    workload = next(
        (document for document in objects if _is_named(document, target.get("kind"), target.get("name"))), None
    )
    metrics = {_metric(metric): metric for metric in items(autoscaler, "spec", "metrics")}
    namespace = str(part(autoscaler, "metadata", "namespace") or given.namespace)
    series: dict[str, SeriesFacts] = {}
    api: dict[str, ApiFacts] = {}
    for (kind, name), metric in metrics.items():
        query = _query(kind, name, namespace, owner_of(autoscaler, objects))
        if given.prometheus and query:
            series[name] = _series(given.prometheus, query)
        if cluster is not None:
            api[name] = cluster.metric(metric, workload)
    others = [other for other in objects if other is not autoscaler]
    pods = None if cluster is None or workload is None else cluster.ready_pods(workload)
    return AutoscalerFacts(autoscaler, others, adapter, series, api, pods)


def _is_named(document: Mapping[str, Any], kind: object, name: object) -> bool:
    return (document.get("kind"), name_of(document)) == (kind, name)


def _query(kind: str, name: str, namespace: str, owner: Mapping[str, Any] | None) -> str:
    """Return what to ask Prometheus of a metric: its series, or the query of KEDA's trigger; "" for nothing."""
    if kind == "Pods":  # a series without a namespace is a fault of the rule, which is shown
        return f'{{__name__="{name}",namespace=~"{namespace}|"}}'
    index = re.match(r"s(\d+)-", name)
    triggers = items(owner, "spec", "triggers")
    if kind != "External" or index is None or int(index[1]) >= len(triggers):
        return ""
    return str(part(triggers[int(index[1])], "metadata", "query") or "")


def _missing(objects: Sequence[Mapping[str, Any]], given: DoctorSettings) -> str:
    """Return what to give instead of objects without the autoscaler."""
    where = f"in the namespace '{given.namespace}'" if given.api else "in the files"
    wanted = f"{HPA} '{given.name}'" if given.name else HPA
    for scaled in objects:
        if scaled.get("kind") == "ScaledObject" and given.name in {"", name_of(scaled), hpa_of(scaled)}:
            name, autoscaler = name_of(scaled), hpa_of(scaled)
            if given.api:
                text = f"KEDA has not created '{autoscaler}' for the ScaledObject '{name}'"
                return f"no {wanted} {where}; {text}: kubectl describe scaledobject {name} has the reason"
            text = f"KEDA creates '{autoscaler}' for the ScaledObject '{name}'"
            return f"no {wanted} {where}; {text}: give --api, or what kubectl get hpa {autoscaler} -o yaml prints"
    return f"no {wanted} {where}; give its manifest, or {'another --namespace' if given.api else '--api'}"


def _documents(file: str) -> list[dict[str, Any]]:
    text = read_text(Path("/dev/stdin" if file == "-" else file))
    return listed(parse_yaml(text, file))


def _adapter_rules(objects: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """Return the rules of prometheus-adapter: values of its chart, its configuration, or a ConfigMap with either."""
    adapter_rules: list[Mapping[str, Any]] | None = None
    for candidate in objects:
        data = part(candidate, "data") if candidate.get("kind") == "ConfigMap" else None
        texts = data.values() if isinstance(data, Mapping) else ()
        for document in [candidate, *(load.value for text in texts for load in _quietly(str(text)))]:
            rules = part(document, "rules")
            if isinstance(rules, Mapping):
                rules = rules.get("custom")
            if isinstance(rules, list) and any("seriesQuery" in rule for rule in rules if isinstance(rule, Mapping)):
                adapter_rules = [*(adapter_rules or []), *(rule for rule in rules if isinstance(rule, Mapping))]
    return adapter_rules


def _quietly(text: str) -> list[Any]:
    try:
        return list(load_documents(text))
    except YamlError:
        return []  # data of a ConfigMap need not be YAML


def _metric(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return type and name of a metric."""
    kind = str(item.get("type"))
    source = item.get(kind[:1].lower() + kind[1:])
    return kind, str(part(source, "metric", "name") or part(source, "name") or "")


def _series(url: str, query: str) -> SeriesFacts:
    try:
        data = ask_prometheus(url, "query", {"query": query})
    except Unavailable as error:
        return SeriesFacts(error=error.message)
    return SeriesFacts([series.get("metric", {}) for series in items(data, "result")])


def _print(links: Mapping[str, Sequence[Link]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: [_document(link) for link in way] for name, way in links.items()}, indent=2))
        return
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    for name, way in links.items():
        console.print(f"{HPA} {name}", style="bold", markup=False)
        metric = ""
        for link in way:
            if link.metric != metric:
                metric = link.metric
                console.print(metric or "as a whole", markup=False)
            style = {LinkState.BROKEN: "red", LinkState.UNKNOWN: "dim"}.get(link.state, "")
            console.print(Padding(Text(f"{_SIGNS[link.state]:<7}{link.stage}: {link.text}", style), (0, 0, 0, 2)))
            if link.state is LinkState.BROKEN and link.remedy:
                console.print(Padding(Text(f"To do: {link.remedy}"), (0, 0, 0, 9)))


def _document(link: Link) -> dict[str, str]:
    return {"metric": link.metric, "link": link.stage, "state": link.state.value, "found": link.text, "do": link.remedy}
