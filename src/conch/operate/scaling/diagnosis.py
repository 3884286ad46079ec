"""Why an autoscaler does not scale, or only up: follow each metric from the pods to the status of the autoscaler."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from conch.base.kubernetes.objects import items, mapping, part, selects
from conch.domain.metrics.catalog import all_metrics
from conch.operate.monitoring.rules.known_metrics import MetricTable
from conch.operate.monitoring.rules.shipped_alerts import QUEUE_COMPUTE
from conch.operate.scaling.hpa.spec import HpaSpec, MetricSpec, MetricType, read_hpa
from conch.operate.scaling.kubernetes_facts import (
    MONITORS,
    KubernetesObject,
    Scraped,
    Surroundings,
    hpa_of,
    in_one_namespace,
    name_of,
    owner_of,
    pod_labels,
    rivals,
    scrape_faults,
    shares_without_request,
    titled,
    unusable_metrics,
)

_MAX_NAMES = 3
_METRIC_REMEDIES = {
    "autoscaler-counter": f"scale on {QUEUE_COMPUTE} or on a rate",
    "autoscaler-metric": "correct the name; docs/reference/metrics.md lists them",
}
_KEDA_LOG = "see kubectl logs --namespace keda deployment/keda-operator"
# Reason of a condition → what it means, and what to do; those without are described by their message.
_REASONS = {
    "FailedGetScale": ("the target does not exist", "correct spec.scaleTargetRef"),
    "FailedGetResourceMetric": ("metrics.k8s.io has no values of the pods", "install metrics-server; see its log"),
    "FailedGetPodsMetric": (
        "custom.metrics.k8s.io has no values of the pods",
        "follow the metric from the pods: monitor, rule, adapter",
    ),
    "FailedGetExternalMetric": ("external.metrics.k8s.io has no value", _KEDA_LOG),
    "InvalidSelector": ("the target has no selector", "scale a Deployment or a StatefulSet"),
    "AmbiguousSelector": ("several autoscalers select the same pods", "delete all but one"),
    "ScalingDisabled": ("the target has 0 replicas, so the autoscaler rests", "scale the target to 1 or more"),
    "TooManyReplicas": ("the metric asks for more than maxReplicas", "raise maxReplicas if there are nodes for it"),
}


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
    """An autoscaler, the other objects, and what Prometheus and the API of metrics answer, where they were asked.

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


_OK, _BROKEN, _UNKNOWN = LinkState.OK, LinkState.BROKEN, LinkState.UNKNOWN


def diagnose(facts: AutoscalerFacts) -> list[Link]:
    """Return the links of each metric, in the order of the way. Raises ConfigError for an invalid autoscaler."""
    spec = read_hpa({key: value for key, value in facts.autoscaler.items() if key != "status"})
    owner = owner_of(facts.autoscaler, facts.objects)
    links = [*_target(facts, spec, owner), *_scaled_object(owner)]
    for metric in spec.metrics:
        if metric.type in {MetricType.RESOURCE, MetricType.CONTAINER_RESOURCE}:
            links += _resource(facts, spec, metric)
        elif metric.type is MetricType.PODS:
            links += _pods_metric(facts, spec, metric)
        else:
            remedy = _KEDA_LOG if metric.type is MetricType.EXTERNAL and owner is not None else ""
            links += _series(facts, spec, metric) if metric.name in facts.series else ()
            links += _from_api(facts, metric, f"{metric.type.value.lower()} metric", remedy)
    return [*links, *_status(facts, owner)]


def _target(facts: AutoscalerFacts, spec: HpaSpec, owner: KubernetesObject | None) -> Iterator[Link]:
    kind, name = spec.target
    workloads = [
        document
        for document in facts.objects
        if document.get("kind") == kind and in_one_namespace(document, facts.autoscaler)
    ]
    if _workload(facts, spec) is not None:
        yield Link("", "target", _OK, f"{kind} '{name}' exists")
    elif workloads:
        names = ", ".join(sorted(f"'{name_of(workload)}'" for workload in workloads))
        remedy = f"correct scaleTargetRef; there is {names}"
        yield Link("", "target", _BROKEN, f"{kind} '{name}' does not exist", remedy)
    else:
        yield Link("", "target", _UNKNOWN, f"{kind} '{name}' is not among the files")
    for rival in rivals(facts.autoscaler, facts.objects):
        remedy = f"delete the other, or this autoscaler: {_command_to_delete(facts.autoscaler, owner)}"
        yield Link("", "target", _BROKEN, rival.message, remedy)


def _command_to_delete(autoscaler: KubernetesObject, owner: KubernetesObject | None) -> str:
    return f"kubectl delete {f'scaledobject {name_of(owner)}' if owner is not None else f'hpa {name_of(autoscaler)}'}"


def _scaled_object(owner: KubernetesObject | None) -> Iterator[Link]:
    """Yield whether KEDA could make an autoscaler of the ScaledObject, and whether its triggers answer."""
    if owner is None:
        return
    title = f"ScaledObject '{name_of(owner)}'"
    conditions = {str(item.get("type")): item for item in items(owner, "status", "conditions")}
    bad = False
    for name, wrong in (("Ready", "False"), ("Fallback", "True"), ("Paused", "True")):
        condition = conditions.get(name, {})
        if condition.get("status") == wrong:
            bad = True
            text = f"{title} is {'not ready' if name == 'Ready' else name.lower()}: {condition.get('message')}"
            yield Link("", "KEDA", _BROKEN, text, _KEDA_LOG if name != "Paused" else "remove its annotation")
    if not bad:
        state = _OK if "Ready" in conditions else _UNKNOWN
        text = "is ready" if "Ready" in conditions else "has no status among the files"
        yield Link("", "KEDA", state, f"{title} {text}; KEDA created this autoscaler for it, {hpa_of(owner)}")


def _workload(facts: AutoscalerFacts, spec: HpaSpec) -> KubernetesObject | None:
    return next(
        (
            document
            for document in facts.objects
            if (document.get("kind"), name_of(document)) == spec.target and in_one_namespace(document, facts.autoscaler)
        ),
        None,
    )


def _resource(facts: AutoscalerFacts, spec: HpaSpec, metric: MetricSpec) -> Iterator[Link]:
    faults = shares_without_request(facts.autoscaler, Surroundings(facts.objects))
    lacking = [fault for fault in faults if fault.metric == metric.name]
    for fault in lacking:
        yield Link(metric.name, "request", _BROKEN, fault.message, f"set resources.requests.{metric.name}")
    if not lacking and _workload(facts, spec) is not None:
        yield Link(metric.name, "request", _OK, f"each container requests {metric.name}")
    yield from _from_api(facts, metric, "metrics.k8s.io", "install metrics-server, which clusters may lack")


def _pods_metric(facts: AutoscalerFacts, spec: HpaSpec, metric: MetricSpec) -> Iterator[Link]:
    faults = unusable_metrics(facts.autoscaler, Surroundings(facts.objects, _recorded(facts)))
    unusable = [fault for fault in faults if fault.metric == metric.name]
    for fault in unusable:
        yield Link(metric.name, "metric", _BROKEN, fault.message, _METRIC_REMEDIES[fault.fact])
    if not unusable and MetricTable(all_metrics()).find(metric.name) is not None:
        yield Link(metric.name, "metric", _OK, "a gauge of the server")
    yield from _rule(facts, metric)
    yield from _monitor(facts, spec, metric)
    yield from _series(facts, spec, metric)
    yield from _adapter(facts, metric)
    yield from _from_api(facts, metric, "custom.metrics.k8s.io", "install prometheus-adapter with a rule for it")


def _rules(facts: AutoscalerFacts) -> list[KubernetesObject]:
    return [document for document in facts.objects if document.get("kind") == "PrometheusRule" or "groups" in document]


def _recorded(facts: AutoscalerFacts) -> set[str]:
    """Return the names of series that rules among the files record."""
    return {
        str(rule.get("record"))
        for document in _rules(facts)
        for group in items(document.get("spec") or document, "groups")
        for rule in items(group, "rules")
    }


def _rule(facts: AutoscalerFacts, metric: MetricSpec) -> Iterator[Link]:
    if ":" not in metric.name:
        return
    if metric.name in _recorded(facts):
        yield Link(metric.name, "recording rule", _OK, "a rule records it")
    elif _rules(facts):
        remedy = "conch rules operator writes a PrometheusRule that has it"
        yield Link(metric.name, "recording rule", _BROKEN, f"no rule of the files records '{metric.name}'", remedy)
    else:
        yield Link(metric.name, "recording rule", _UNKNOWN, "there are no rules among the files")


def _monitor(facts: AutoscalerFacts, spec: HpaSpec, metric: MetricSpec) -> Iterator[Link]:
    monitors = [value for value in facts.objects if value.get("kind") in MONITORS]
    workload = _workload(facts, spec)
    if not monitors or workload is None:
        yield Link(metric.name, "scrape", _UNKNOWN, "the monitor or its workload is missing from the files")
        return
    services = [
        Scraped.of(value)
        for value in facts.objects
        if value.get("kind") == "Service" and selects(mapping(value, "spec", "selector"), pod_labels(workload))
    ]
    faults: list[str] = []
    for monitor in monitors:
        others = [Scraped.of(workload)] if monitor["kind"] == "PodMonitor" else services
        messages = [fault.message for fault in scrape_faults(monitor, others)]
        if others and not messages:
            yield Link(metric.name, "scrape", _OK, f"{titled(monitor)} selects the pods")
            return
        faults += messages or [f"{titled(monitor)} selects no Service of the pods"]
    yield Link(metric.name, "scrape", _BROKEN, "; ".join(faults), "make labels and ports agree")


def _series(facts: AutoscalerFacts, spec: HpaSpec, metric: MetricSpec) -> Iterator[Link]:
    series = facts.series.get(metric.name)
    if series is None:
        yield Link(metric.name, "Prometheus", _UNKNOWN, "was not asked; --prometheus URL does")
    elif series.error:
        remedy = "is kubectl port-forward running? Otherwise see its pod and its log"
        yield Link(metric.name, "Prometheus", _BROKEN, f"does not answer: {series.error}", remedy)
    elif not series.labels and part(_workload(facts, spec), "spec", "replicas") == 0:
        yield Link(metric.name, "Prometheus", _UNKNOWN, "has no series of it, as the target has 0 replicas")
    elif not series.labels:
        what = "has no series of it now" if metric.type is MetricType.PODS else "has no result for the trigger's query"
        remedy = "see Status, Targets: are the pods scraped? A ratio of rates needs requests and two scrapes"
        yield Link(metric.name, "Prometheus", _BROKEN, what, remedy)
    elif metric.type is not MetricType.PODS:
        yield Link(metric.name, "Prometheus", _OK, "answers the trigger's query")
    elif lacking := [label for label in ("namespace", "pod") if not all(label in labels for labels in series.labels)]:
        text = f"{len(series.labels)} series, but without the label {' and '.join(lacking)}"
        remedy = "keep these labels in the rule (sum by (namespace, pod)) and in the scrape configuration"
        yield Link(metric.name, "Prometheus", _BROKEN, text, remedy)
    else:
        yield _of_pods(facts, spec, metric, [label["pod"] for label in series.labels])


def _of_pods(facts: AutoscalerFacts, spec: HpaSpec, metric: MetricSpec, pods: list[str]) -> Link:
    """Return whether the series are those of the target's pods: of all that are ready, where these are known."""
    kind, name = spec.target
    suffix = r"-\d+" if kind == "StatefulSet" else r"-[a-z0-9]+-[a-z0-9]{5}"
    ready = facts.ready_pods
    own = [pod for pod in pods if pod in ready] if ready else [pod for pod in pods if _is_pod_of(pod, name, suffix)]
    if not own:
        text = f"{len(pods)} series, none of them of a pod of {kind} '{name}', but of {_shortened(set(pods))}"
        return Link(metric.name, "Prometheus", _BROKEN, text, "see Status, Targets: are these pods scraped?")
    if lacking := (ready or frozenset()) - set(own):
        text = f"{len(own)} series of {len(set(own))} of {len(ready or ())} ready pods; none of {_shortened(lacking)}"
        remedy = "see Status, Targets: is this pod scraped? A new pod has series after two scrapes"
        return Link(metric.name, "Prometheus", _BROKEN, text, remedy)
    return Link(metric.name, "Prometheus", _OK, f"{len(own)} series of {len(set(own))} pods")


def _is_pod_of(pod: str, name: str, suffix: str) -> bool:
    return re.fullmatch(re.escape(name) + suffix, pod) is not None


def _shortened(names: set[str] | frozenset[str]) -> str:
    shown = sorted(names)[:_MAX_NAMES]
    return ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(names) > len(shown) else "")


def _adapter(facts: AutoscalerFacts, metric: MetricSpec) -> Iterator[Link]:
    if facts.adapter_rules is None:
        yield Link(metric.name, "adapter", _UNKNOWN, "its rules are not among the files")
        return
    for rule in facts.adapter_rules:
        query = str(rule.get("seriesQuery", ""))
        name = re.match(r"[\w:]+", query)
        if metric.name not in {part(rule, "name", "as"), name[0] if name and not part(rule, "name", "as") else None}:
            continue
        overrides = mapping(rule, "resources", "overrides")
        resources = {str(part(override, "resource")) for override in overrides.values()}
        template = part(rule, "resources", "template")
        if template is None and not {"namespace", "pod"} <= resources:
            text = "its rule does not map labels to namespace and pod"
            remedy = "add resources.overrides for namespace and pod"
            yield Link(metric.name, "adapter", _BROKEN, text, remedy)
        else:
            yield Link(metric.name, "adapter", _OK, "a rule serves it")
        return
    remedy = "add the rule that conch k8s render writes with autoscaling.adapter, and restart the adapter"
    yield Link(metric.name, "adapter", _BROKEN, "no rule serves it", remedy)


def _from_api(facts: AutoscalerFacts, metric: MetricSpec, api: str, remedy: str = "") -> Iterator[Link]:
    answer = facts.api.get(metric.name)
    if answer is None:
        yield Link(metric.name, api, _UNKNOWN, "was not asked; --api URL does, with kubectl proxy")
    elif answer.error:
        yield Link(metric.name, api, _BROKEN, answer.error, remedy)
    elif metric.type in {MetricType.EXTERNAL, MetricType.OBJECT}:
        if answer.values:
            yield Link(metric.name, api, _OK, f"has the value {answer.shown}" if answer.shown else "has a value")
        else:
            yield Link(metric.name, api, _BROKEN, "knows it, but has no value", remedy or "see the links before")
    elif not answer.values:
        yield Link(metric.name, api, _BROKEN, "knows it, but has no value of a pod", "see the links before")
    elif answer.pods is not None and (lacking := (facts.ready_pods or frozenset()) - answer.pods):
        text = (
            f"has values of {answer.values} of {len(facts.ready_pods or ())} ready pods; none of {_shortened(lacking)}"
        )
        yield Link(metric.name, api, _BROKEN, text, "see the links before; a new pod has values after two scrapes")
    else:
        yield Link(metric.name, api, _OK, f"has values of {answer.values} pods")


def _status(facts: AutoscalerFacts, owner: KubernetesObject | None) -> Iterator[Link]:
    to_zero = owner is not None and not part(owner, "spec", "minReplicaCount")
    status: Any = facts.autoscaler.get("status")
    if not status:
        return
    for condition in items(status, "conditions"):
        reason = str(condition.get("reason", ""))
        bad = condition.get("status") != ("False" if condition.get("type") == "ScalingLimited" else "True")
        if reason == "ScalingDisabled" and to_zero:
            yield Link("", "status", _OK, "the target has 0 replicas, from which KEDA scales it up")
        elif bad and reason != "TooFewReplicas":  # fewer than minReplicas are wanted: as it should be
            message = str(condition.get("message") or "")
            text, remedy = _REASONS.get(reason, (message, ""))
            text = f"{text}: {message}" if message and text != message else text
            yield Link("", f"status {condition.get('type')}", _BROKEN, f"{reason}: {text}", remedy)
    if not items(status, "conditions"):
        text = "the controller has not looked at it yet; kubectl shows <unknown> for its first 15 s"
        yield Link("", "status", _UNKNOWN, text)
