"""Values that are valid each, but not together, or in the wrong place.

The template `_conflicts.tpl` of the chart has the same checks with the same messages.
"""

import re
from collections.abc import Iterator

from conch.domain.metrics.catalog import all_metrics
from conch.operate.deployment.values.chart_keys import CHART_KEYS
from conch.operate.deployment.values.deployment import DeploymentValues
from conch.operate.deployment.values.network.service import ServiceValues
from conch.operate.deployment.values.scaling.autoscaling import AutoscalingValues

_API_KEY = re.compile(r"CONCH_(OPENAI_)?API_KEY")
_SHARED_MEMORY = re.compile(r"(?i)shm[-_]size")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]*)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
_RESOURCE_KEYS = ("claims", "limits", "requests")
_MIN_VERSION_OF_IMAGE_VOLUMES = 31
_REPOSITORY_SOURCES = "claimName, image, pull and volume"
# Metrics that only grow, by which an autoscaler would add replicas for ever.
COUNTERS = frozenset(
    name
    for metric in all_metrics().values()
    for name in (
        (metric.name, f"{metric.name}_total")
        if metric.kind == "counter"
        else tuple(f"{metric.name}_{part}" for part in ("bucket", "sum", "count"))
        if metric.kind == "histogram"
        else ()
    )
)


def conflicts(values: DeploymentValues) -> Iterator[str]:
    """Yield what is wrong with values that are valid one by one: the keys, and what would be right.

    They have Conch's own names.
    """
    yield from _environment(values)
    yield from _keys_of_chart(values)
    yield from _resources(values)
    yield from _repository(values)
    yield from _accelerator(values)
    yield from _ports(values.service)
    if values.secrets.tls.mutual and not values.secrets.tls.secret_name:
        yield "secrets.tls.mutual needs secrets.tls.secretName: without a certificate, clients connect without TLS"
    monitoring = values.monitoring
    if monitoring.scrape_timeout_seconds > monitoring.interval_seconds:
        yield (
            f"monitoring.scrapeTimeoutSeconds {monitoring.scrape_timeout_seconds} exceeds monitoring.intervalSeconds"
            f" {monitoring.interval_seconds}"
        )
    if values.autoscaling.type != "none":
        yield from _autoscaling(values.autoscaling)
    if values.disruption_budget.enabled:
        yield from _disruption_budget(values)


def _environment(values: DeploymentValues) -> Iterator[str]:
    for each in values.environment:
        if _SHARED_MEMORY.fullmatch(each.name):
            yield f"environment: {each.name} does not change the size of /dev/shm; set sharedMemory.size"
        if _API_KEY.fullmatch(each.name):
            yield f"environment: {each.name} contains a secret; put the keys in a Secret, and set secrets.apiKeys"


def _keys_of_chart(values: DeploymentValues) -> Iterator[str]:
    given = {
        "server.extraArgs": (argument.split("=")[0] for argument in values.server.extra_args),
        "podLabels": sorted(values.pod_labels),
        "podSpec": sorted(values.pod_spec),
        "service.spec": sorted(values.service.spec),
    }
    for place, names in given.items():
        for name in names:
            if name in CHART_KEYS[place]:
                yield f"{place}: {name} is set by the chart; use {CHART_KEYS[place][name]}"


def _ports(service: ServiceValues) -> Iterator[str]:
    if service.grpc_port == service.http_port:
        yield f"service.grpcPort {service.grpc_port} equals service.httpPort; use another port"
    for name, port in (("httpPort", service.http_port), ("grpcPort", service.grpc_port)):
        if service.metrics_port == port:
            yield f"service.metricsPort {port} equals service.{name}; use another port"


def _resources(values: DeploymentValues) -> Iterator[str]:
    for place, amounts in sorted(values.resources.items()):
        if place not in _RESOURCE_KEYS:
            yield f"resources: unknown key '{place}'; Known: {', '.join(_RESOURCE_KEYS)}"
        elif place == "claims":
            continue
        elif not isinstance(amounts, dict):
            yield f"resources.{place} is not a mapping of resources to quantities, such as {{memory: 4Gi}}"
        else:
            for name, amount in sorted(amounts.items()):
                if not _QUANTITY.fullmatch(str(amount)):
                    yield f"resources.{place}.{name}: {amount} is not a valid quantity, such as 500m, 2 or 4Gi"


def _repository(values: DeploymentValues) -> Iterator[str]:
    repository = values.model_repository
    sources = [each for each in (repository.claim_name, repository.image, repository.pull, repository.volume) if each]
    if len(sources) > 1:
        yield f"modelRepository: {_REPOSITORY_SOURCES} exclude each other; set one of them"
    if sources and "://" in repository.path:
        yield f"modelRepository.path: {repository.path} is not a folder; set none of {_REPOSITORY_SOURCES}"
    if repository.image and values.kubernetes_minor < _MIN_VERSION_OF_IMAGE_VOLUMES:
        yield "modelRepository.image: image volumes need kubernetesVersion 1.31 or later; use modelRepository.pull"
    if values.server.load_models and values.server.model_control_mode == "poll":
        yield "server.modelControlMode: poll excludes server.loadModels; use none or explicit"


def _accelerator(values: DeploymentValues) -> Iterator[str]:
    accelerator = values.accelerator
    if (accelerator.sharing == "mig") != bool(accelerator.mig_profile):
        yield "accelerator: sharing mig and migProfile go together; set both or none"
    if (accelerator.products or accelerator.is_shared) and "nodeAffinity" in values.affinity:
        yield "affinity.nodeAffinity: accelerator.products and accelerator.sharing set it; remove it, or them"


def _autoscaling(scaling: AutoscalingValues) -> Iterator[str]:
    if scaling.min_replicas > scaling.max_replicas:
        yield (f"autoscaling.minReplicas {scaling.min_replicas} exceeds autoscaling.maxReplicas {scaling.max_replicas}")
    if scaling.type == "hpa":
        if scaling.min_replicas == 0:
            yield "autoscaling.minReplicas 0 needs autoscaling.type keda: a HorizontalPodAutoscaler keeps at least 1"
        if not (scaling.metrics or scaling.resources or scaling.custom_metrics):
            yield "autoscaling.metrics, resources and customMetrics are empty; the autoscaler needs one metric"
        for each in scaling.custom_metrics:
            for source in ("pods", "object", "external"):
                name = _metric_name(each.get(source))
                if name in COUNTERS:
                    yield (
                        f"autoscaling.customMetrics has '{name}', a counter: it only grows, so replicas would only be"
                        " added; use a metric of autoscaling.metrics"
                    )
    else:
        if scaling.min_replicas == 0 and not scaling.keda.triggers:
            yield (
                "autoscaling.minReplicas 0 needs a trigger in autoscaling.keda.triggers: metrics of"
                " pods cannot start the first one"
            )
        if not (scaling.metrics or scaling.resources or scaling.keda.triggers or scaling.keda.prediction.enabled):
            yield "autoscaling.metrics, resources and keda.triggers are empty; the autoscaler needs one trigger"
        if scaling.keda.fallback.replicas > scaling.max_replicas:
            yield (
                f"autoscaling.keda.fallback.replicas {scaling.keda.fallback.replicas} exceeds autoscaling.maxReplicas"
                f" {scaling.max_replicas}"
            )
        if scaling.keda.authentication.mode and not scaling.keda.authentication.secret_name:
            yield "autoscaling.keda.authentication.secretName is empty; name the Secret of the mode"


def _metric_name(source: object) -> object:
    metric = source.get("metric") if isinstance(source, dict) else None
    return metric.get("name") if isinstance(metric, dict) else None


def _disruption_budget(values: DeploymentValues) -> Iterator[str]:
    budget, scaling = values.disruption_budget, values.autoscaling
    least, most = str(budget.min_available), str(budget.max_unavailable)
    if bool(least) == bool(most):
        yield "disruptionBudget needs either minAvailable or maxUnavailable; set the other to ''"
        return
    if most in ("0", "0%"):
        yield f"disruptionBudget.maxUnavailable {most} keeps all pods, so no node can be drained; use at least 1"
    replicas = values.replica_count if scaling.type == "none" else max(scaling.min_replicas, 1)
    if least and replicas:
        kept = -(-int(least[:-1]) * replicas // 100) if least.endswith("%") else int(least)
        if kept >= replicas:
            yield (
                f"disruptionBudget.minAvailable {least} keeps {kept} of {replicas} replicas, so no node can be drained;"
                " use maxUnavailable 1"
            )
