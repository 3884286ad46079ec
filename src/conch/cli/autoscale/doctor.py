"""`conch autoscale doctor`: find out why an autoscaler shows <unknown>, or only scales up."""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from conch.bench.observers.scrape import ScrapeSettings, scrape
from conch.cli.text_files import read_text
from conch.cli.yaml_files import parse_yaml
from conch.errors import ConfigError, Unavailable
from conch.fleet.metrics.prometheus_api import ask_prometheus
from conch.monitoring.object_parts import items, part
from conch.monitoring.yaml_documents import YamlError, load_documents
from conch.scaling.doctor.diagnosis import diagnose
from conch.scaling.doctor.facts import ApiFacts, AutoscalerFacts, Link, LinkState, SeriesFacts

_BROKEN_STATUS = 1
_HPA = "HorizontalPodAutoscaler"
_KINDS = {  # of the API that --api reads: path and kind of its items
    "apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers": _HPA,
    "apis/apps/v1/namespaces/{}/deployments": "Deployment",
    "apis/apps/v1/namespaces/{}/statefulsets": "StatefulSet",
    "api/v1/namespaces/{}/services": "Service",
    "apis/monitoring.coreos.com/v1/namespaces/{}/podmonitors": "PodMonitor",
    "apis/monitoring.coreos.com/v1/namespaces/{}/servicemonitors": "ServiceMonitor",
    "apis/monitoring.coreos.com/v1/namespaces/{}/prometheusrules": "PrometheusRule",
    "apis/keda.sh/v1alpha1/namespaces/{}/scaledobjects": "ScaledObject",
}
_SIGNS = {LinkState.OK: "ok", LinkState.BROKEN: "broken", LinkState.UNKNOWN: "?"}


def doctor(given: Namespace) -> int:
    """Print the links of each autoscaler; return 1 if one is broken, else 0. Raises ConfigError."""
    objects = [each for file in given.files for each in _documents(file)]
    if given.api:
        objects += _from_cluster(given.api.rstrip("/"), given.namespace)
    autoscalers = [
        each for each in objects if each.get("kind") == _HPA and given.name in {"", part(each, "metadata", "name")}
    ]
    if not autoscalers:
        raise ConfigError(_missing(objects, given.name))
    adapter = _adapter_rules(objects)
    links: dict[str, list[Link]] = {}
    for each in autoscalers:
        metrics = [_metric(item) for item in items(each, "spec", "metrics")]
        series = {
            name: _series(given.prometheus, name) for kind, name in metrics if given.prometheus and kind == "Pods"
        }
        api = {name: _values(given.api.rstrip("/"), given.namespace, kind, name) for kind, name in metrics if given.api}
        facts = AutoscalerFacts(each, [other for other in objects if other is not each], adapter, series, api)
        links[_title(each, autoscalers)] = diagnose(facts)
    _print(links, as_json=given.json)
    broken = any(link.state is LinkState.BROKEN for found in links.values() for link in found)
    return _BROKEN_STATUS if broken else 0


def _title(autoscaler: Mapping[str, Any], all_of_them: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of an autoscaler, with its namespace if others have the same name."""
    name = str(part(autoscaler, "metadata", "name"))
    if sum(part(each, "metadata", "name") == name for each in all_of_them) == 1:
        return name
    return f"{part(autoscaler, 'metadata', 'namespace') or 'default'}/{name}"


def _missing(objects: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return what to give instead of objects without the autoscaler."""
    wanted = f"{_HPA} '{name}'" if name else _HPA
    scaled = [str(part(each, "metadata", "name")) for each in objects if each.get("kind") == "ScaledObject"]
    if scaled and not name:
        return (
            f"no {_HPA} in the files; KEDA creates 'keda-hpa-{scaled[0]}' for the ScaledObject '{scaled[0]}': give"
            f" --api, or what kubectl get hpa keda-hpa-{scaled[0]} -o yaml prints"
        )
    return f"no {wanted} in the files; give its manifest, or --api"


def _documents(file: str) -> list[dict[str, Any]]:
    text = read_text(Path("/dev/stdin" if file == "-" else file))
    found: list[dict[str, Any]] = []
    for each in parse_yaml(text, file):
        if isinstance(each, dict):
            found += [dict(item) for item in items(each, "items")] if each.get("kind") == "List" else [each]
    return found


def _adapter_rules(objects: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """Return the rules of prometheus-adapter: values of its chart, its configuration, or a ConfigMap with either."""
    found: list[Mapping[str, Any]] | None = None
    for each in objects:
        data = part(each, "data") if each.get("kind") == "ConfigMap" else None
        texts = data.values() if isinstance(data, Mapping) else ()
        for document in [each, *(load.value for text in texts for load in _quietly(str(text)))]:
            rules = part(document, "rules")
            if isinstance(rules, Mapping):
                rules = rules.get("custom")
            if isinstance(rules, list) and any("seriesQuery" in rule for rule in rules if isinstance(rule, Mapping)):
                found = [*(found or []), *(rule for rule in rules if isinstance(rule, Mapping))]
    return found


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


def _series(url: str, name: str) -> SeriesFacts:
    try:
        data = ask_prometheus(url, "query", {"query": f'{{__name__="{name}"}}'})
    except Unavailable as error:
        return SeriesFacts(error=error.message)
    return SeriesFacts([each.get("metric", {}) for each in items(data, "result")])


def _json(url: str) -> Any:
    """Return what a URL answers. Raises OSError or ValueError."""
    return json.loads(scrape(ScrapeSettings(url)))


def _values(url: str, namespace: str, kind: str, name: str) -> ApiFacts:
    if kind in {"Resource", "ContainerResource"}:
        path = f"apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"
    elif kind == "Pods":
        path = f"apis/custom.metrics.k8s.io/v1beta1/namespaces/{namespace}/pods/*/{quote(name, safe=':')}"
    else:
        path = f"apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{quote(name, safe=':')}"
    try:
        answer = _json(f"{url}/{path}")
    except (OSError, ValueError) as error:
        return ApiFacts(error=f"{path}: {error}")
    return ApiFacts(len(items(answer, "items")))


def _from_cluster(url: str, namespace: str) -> list[dict[str, Any]]:
    """Return the objects of a namespace; kinds that the cluster does not have are omitted."""
    found = []
    for path, kind in _KINDS.items():
        try:
            answer = _json(f"{url}/{path.format(namespace)}")
        except (OSError, ValueError) as error:
            if kind == _HPA:
                raise ConfigError(f"--api: {url} cannot be read: {error}; is kubectl proxy running?") from None
            continue
        # Items of a list have neither kind nor version.
        version = path.partition("/namespaces")[0].removeprefix("apis/").removeprefix("api/")
        found += [{**item, "kind": kind, "apiVersion": version} for item in items(answer, "items")]
    return found


def _print(links: Mapping[str, Sequence[Link]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: [_document(each) for each in found] for name, found in links.items()}, indent=2))
        return
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    for name, found in links.items():
        console.print(f"{_HPA} {name}", style="bold", markup=False)
        metric = ""
        for each in found:
            if each.metric != metric:
                metric = each.metric
                console.print(metric or "as a whole", markup=False)
            style = {LinkState.BROKEN: "red", LinkState.UNKNOWN: "dim"}.get(each.state, "")
            console.print(Padding(Text(f"{_SIGNS[each.state]:<7}{each.stage}: {each.text}", style), (0, 0, 0, 2)))
            if each.state is LinkState.BROKEN and each.remedy:
                console.print(Padding(Text(f"To do: {each.remedy}"), (0, 0, 0, 9)))


def _document(link: Link) -> dict[str, str]:
    return {"metric": link.metric, "link": link.stage, "state": link.state.value, "found": link.text, "do": link.remedy}
