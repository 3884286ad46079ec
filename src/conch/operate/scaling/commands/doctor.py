"""`conch autoscale doctor`: find out why an autoscaler shows <unknown>, or only scales up."""

import json
import re
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conch.base.command_line.files import parse_yaml, read_text
from conch.base.errors import ConfigError, Unavailable
from conch.base.http.prometheus import ask_prometheus
from conch.base.kubernetes.objects import items, listed, mapping, part
from conch.base.yaml_documents import YamlError, load_documents
from conch.operate.scaling.commands.cluster import ClusterFacts
from conch.operate.scaling.diagnosis import ApiFacts, AutoscalerFacts, Link, LinkState, SeriesFacts, diagnose
from conch.operate.scaling.kubernetes_facts import HPA, hpa_of, name_of, owner_of

_BROKEN_STATUS = 1
_SIGNS = {LinkState.OK: "ok", LinkState.BROKEN: "broken", LinkState.UNKNOWN: "?"}


def doctor(given: Namespace) -> int:
    """Print the links of each autoscaler; return 1 if one is broken, else 0. Raises ConfigError."""
    objects = [document for file in given.files for document in _documents(file)]
    cluster = ClusterFacts(given.api, given.namespace) if given.api else None
    if cluster is not None:
        objects += cluster.objects()
    autoscalers = [found for found in objects if found.get("kind") == HPA and _is_wanted(found, given.name, objects)]
    if not autoscalers:
        raise ConfigError(_missing(objects, given))
    adapter = _adapter_rules(objects)
    links: dict[str, list[Link]] = {}
    for autoscaler in autoscalers:
        facts = _facts(autoscaler, objects, adapter, cluster, given)
        links[_title(autoscaler, autoscalers)] = diagnose(facts)
    _print(links, as_json=given.json)
    for refusal in cluster.unread if cluster is not None else ():
        print(f"conch autoscale doctor: --api: {refusal}", file=sys.stderr)
    broken = any(link.state is LinkState.BROKEN for found in links.values() for link in found)
    return _BROKEN_STATUS if broken else 0


def _title(autoscaler: Mapping[str, Any], all_of_them: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of an autoscaler, with its namespace if others have the same name."""
    name = str(part(autoscaler, "metadata", "name"))
    if sum(part(each, "metadata", "name") == name for each in all_of_them) == 1:
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
    given: Namespace,
) -> AutoscalerFacts:
    """Return what is known of an autoscaler, with what Prometheus and the API server answer if they are asked."""
    target = mapping(autoscaler, "spec", "scaleTargetRef")
    workload = next((found for found in objects if _is_named(found, target.get("kind"), target.get("name"))), None)
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


def _is_named(found: Mapping[str, Any], kind: object, name: object) -> bool:
    return (found.get("kind"), name_of(found)) == (kind, name)


def _query(kind: str, name: str, namespace: str, owner: Mapping[str, Any] | None) -> str:
    """Return what to ask Prometheus of a metric: its series, or the query of KEDA's trigger; "" for nothing."""
    if kind == "Pods":  # a series without a namespace is a fault of the rule, which is shown
        return f'{{__name__="{name}",namespace=~"{namespace}|"}}'
    index = re.match(r"s(\d+)-", name)
    triggers = items(owner, "spec", "triggers")
    if kind != "External" or index is None or int(index[1]) >= len(triggers):
        return ""
    return str(part(triggers[int(index[1])], "metadata", "query") or "")


def _missing(objects: Sequence[Mapping[str, Any]], given: Namespace) -> str:
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


def _series(url: str, query: str) -> SeriesFacts:
    try:
        data = ask_prometheus(url, "query", {"query": query})
    except Unavailable as error:
        return SeriesFacts(error=error.message)
    return SeriesFacts([each.get("metric", {}) for each in items(data, "result")])


def _print(links: Mapping[str, Sequence[Link]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: [_document(each) for each in found] for name, found in links.items()}, indent=2))
        return
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    for name, found in links.items():
        console.print(f"{HPA} {name}", style="bold", markup=False)
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
