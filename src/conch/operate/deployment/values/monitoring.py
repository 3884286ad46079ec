"""How Prometheus finds the pods, which alerts there are, and whether Grafana gets the dashboards."""

from dataclasses import fields
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from conch.operate.deployment.values.section import KubernetesPart, Labels, PositiveCount, Section
from conch.operate.monitoring.rules.known_metrics import MAX_CELSIUS
from conch.operate.monitoring.rules.thresholds import Thresholds

_OPTIONS = {each.name: each for each in fields(Thresholds)}
# Unit of a threshold → what follows its description, and what it is below.
_UNITS: dict[str, tuple[str, float | None]] = {
    "seconds": (" (seconds)", None),
    "ratio": ("", None),
    "count": ("", None),
    "share": (" (0 to 1)", 1),
    "celsius": (" (°C)", MAX_CELSIUS),
}


def _limit(name: str) -> Any:
    option = _OPTIONS[name].metadata
    suffix, below = _UNITS[option["unit"]]
    text = str(option["help"])
    return Meta(gt=0, description=f"{text[0].upper()}{text[1:]}{suffix}", lt=below)


def _default(name: str) -> Any:
    return _OPTIONS[name].default


class ThresholdValues(Section, frozen=True):
    """What is too much: the options of `conch rules`, with its defaults and descriptions."""

    queue_time: Annotated[float, _limit("queue_time")] = _default("queue_time")
    oldest_request: Annotated[float, _limit("oldest_request")] = _default("oldest_request")
    queue_compute_ratio: Annotated[float, _limit("queue_compute_ratio")] = _default("queue_compute_ratio")
    failure_ratio: Annotated[float, _limit("failure_ratio")] = _default("failure_ratio")
    objective: Annotated[float, _limit("objective")] = _default("objective")
    p99: Annotated[float, _limit("p99")] = _default("p99")
    utilization: Annotated[float, _limit("utilization")] = _default("utilization")
    scale_up: Annotated[float, _limit("scale_up")] = _default("scale_up")
    restarts: Annotated[float, _limit("restarts")] = _default("restarts")
    unready: Annotated[float, _limit("unready")] = _default("unready")
    kv_cache: Annotated[float, _limit("kv_cache")] = _default("kv_cache")
    waiting_requests: Annotated[float, _limit("waiting_requests")] = _default("waiting_requests")
    ttft: Annotated[float, _limit("ttft")] = _default("ttft")
    gpu_temperature: Annotated[float, _limit("gpu_temperature")] = _default("gpu_temperature")
    gpu_idle: Annotated[float, _limit("gpu_idle")] = _default("gpu_idle")
    gpu_idle_time: Annotated[float, _limit("gpu_idle_time")] = _default("gpu_idle_time")
    gpu_memory: Annotated[float, _limit("gpu_memory")] = _default("gpu_memory")


class RuleValues(Section, frozen=True):
    """The PrometheusRule: recorded ratios, which autoscalers and dashboards read, and alerts."""

    enabled: Annotated[bool, Meta(description="Create the PrometheusRule; it selects the series of this release")] = (
        True
    )
    interval_seconds: Annotated[
        PositiveCount, Meta(description="Seconds between evaluations of the recording rules")
    ] = 6
    thresholds: Annotated[ThresholdValues, Meta(description="What is too much")] = field(
        default_factory=ThresholdValues
    )


class DashboardValues(Section, frozen=True):
    """Dashboards as ConfigMaps, for the sidecar of Grafana in kube-prometheus-stack."""

    enabled: Annotated[
        bool, Meta(description="Create the ConfigMaps; one release of a cluster is enough, the pages select the job")
    ] = True
    labels: Annotated[Labels, Meta(description="Labels by which the sidecar finds them")] = field(
        default_factory=lambda: {"grafana_dashboard": "1"}
    )
    folder: Annotated[str, Meta(description="Folder in Grafana, where the sidecar reads folderAnnotation")] = "Conch"


class MonitoringValues(Section, frozen=True):
    """Objects of the Prometheus operator: monitor, rules, dashboards."""

    enabled: Annotated[
        bool, Meta(description="Create the objects below; the cluster needs the Prometheus operator")
    ] = False
    monitor: Annotated[
        Literal["PodMonitor", "ServiceMonitor", "none"],
        Meta(description="How the operator finds the pods; none: you scrape them, with the release's name as job"),
    ] = "PodMonitor"
    labels: Annotated[
        Labels, Meta(description="Labels of the monitor and the rules by which Prometheus selects them")
    ] = field(default_factory=lambda: {"release": "prometheus"})
    interval_seconds: Annotated[PositiveCount, Meta(description="Seconds between scrapes of a pod")] = 6
    scrape_timeout_seconds: Annotated[
        PositiveCount, Meta(description="Seconds that a scrape may take, at most intervalSeconds")
    ] = 5
    metric_relabelings: Annotated[
        tuple[KubernetesPart, ...], Meta(description="RelabelConfig objects, for example to drop series")
    ] = ()
    rules: Annotated[RuleValues, Meta(description="Recording rules and alerts")] = field(default_factory=RuleValues)
    dashboards: Annotated[DashboardValues, Meta(description="Dashboards of Grafana")] = field(
        default_factory=DashboardValues
    )
