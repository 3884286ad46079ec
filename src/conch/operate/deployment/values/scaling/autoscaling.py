"""How the number of replicas follows the load: HorizontalPodAutoscaler or KEDA, metrics, targets, behaviour."""

from typing import Annotated, Literal

from msgspec import Meta, field

from conch.operate.deployment.values.section import Count, KubernetesPart, ObjectName, PositiveCount, Seconds, Section

# The metrics of pods that the adapter's rules define; `scaling_metrics.py` of Kubernetes' objects has their queries.
PodMetricName = Literal[
    "triton:queue_compute:ratio",
    "conch:instance_utilization:ratio_rate1m",
    "conch_requests_per_second",
    "nv_inference_pending_request_count",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
]


# A number, or thousandths of it, such as 1000m. KEDA knows no other units.
_Decimal = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+|m)?$")]
Target = PositiveCount | _Decimal
Threshold = Count | _Decimal


class PodMetricValues(Section, frozen=True):
    """A metric of the pods, and the average over the replicas that the autoscaler aims at."""

    name: Annotated[PodMetricName, Meta(description="Metric that the adapter's rules define")] = (
        "triton:queue_compute:ratio"
    )
    average_value: Annotated[Target, Meta(description="Average over the replicas above which replicas are added")] = (
        "1000m"
    )


# The ratio grows without a bound when replicas are overloaded. The utilization is proportional to the load, and keeps
# the replicas where the ratio falls to 0. `conch autoscale simulate` compares them.
DEFAULT_METRICS = (
    PodMetricValues(),
    PodMetricValues("conch:instance_utilization:ratio_rate1m", "700m"),
)


class ResourceMetricValues(Section, frozen=True):
    """A resource of the containers, which the metrics server measures."""

    name: Annotated[Literal["cpu", "memory"], Meta(description="Resource; the container must request it")] = "cpu"
    average_utilization: Annotated[PositiveCount, Meta(description="Percentage of what the containers request")] = 80


class PredictionValues(Section, frozen=True):
    """A trigger that adds replicas before the load arrives: predict_linear over a metric of the pods."""

    enabled: Annotated[bool, Meta(description="Add the trigger")] = False
    metric: Annotated[
        PodMetricName, Meta(description="Metric that is predicted; requests per second rise before any request waits")
    ] = "nv_inference_pending_request_count"
    average_value: Annotated[Target, Meta(description="Predicted average over the replicas")] = "8"
    window_seconds: Annotated[PositiveCount, Meta(description="Past that the prediction continues as a line")] = 300
    horizon_seconds: Annotated[
        Seconds, Meta(description="How far ahead; 0 means coldStartSeconds and one pollingInterval")
    ] = 0


class FallbackValues(Section, frozen=True):
    """What KEDA does while Prometheus does not answer."""

    failure_threshold: Annotated[PositiveCount, Meta(description="Failed polls in a row before the fallback")] = 3
    replicas: Annotated[
        PositiveCount, Meta(description="Replicas meanwhile; more than these stay, so that no outage scales down")
    ] = 1


class KedaAuthenticationValues(Section, frozen=True):
    """How KEDA authenticates to Prometheus: a TriggerAuthentication that reads a Secret."""

    mode: Annotated[
        Literal["", "bearer", "basic", "tls"], Meta(description='"" for none; more than one mode needs a trigger')
    ] = ""
    secret_name: Annotated[
        ObjectName, Meta(description="Secret with bearerToken, with username and password, or ca, cert and key")
    ] = ""


class KedaValues(Section, frozen=True):
    """What only KEDA's ScaledObject has."""

    server_address: Annotated[str, Meta(pattern="^https?://", description="URL of Prometheus in the cluster")] = (
        "http://prometheus-operated.monitoring.svc:9090"
    )
    polling_interval: Annotated[PositiveCount, Meta(description="Seconds between queries")] = 15
    cold_start_seconds: Annotated[
        PositiveCount,
        Meta(description="Measured time from a new pod to the first answer, such as 40; kubectl describe pod shows it"),
    ] = 60
    cooldown_period: Annotated[
        Seconds,
        Meta(description="Idle seconds before the last replica ends; 0 means ten cold starts, at least 300"),
    ] = 0
    activation_threshold: Annotated[Threshold, Meta(description="Value above which zero replicas become one")] = "0"
    prediction: Annotated[PredictionValues, Meta(description="Scale before the load arrives")] = field(
        default_factory=PredictionValues
    )
    fallback: Annotated[FallbackValues, Meta(description="While Prometheus does not answer")] = field(
        default_factory=FallbackValues
    )
    authentication: Annotated[KedaAuthenticationValues, Meta(description="Authentication to Prometheus")] = field(
        default_factory=KedaAuthenticationValues
    )
    triggers: Annotated[
        tuple[KubernetesPart, ...],
        Meta(description="Further triggers as KEDA has them; minReplicas 0 needs one, since no pod means no metric"),
    ] = ()


def _scale_up() -> KubernetesPart:
    return {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [
            {"type": "Percent", "value": 100, "periodSeconds": 15},
            {"type": "Pods", "value": 4, "periodSeconds": 15},
        ],
    }


def _scale_down() -> KubernetesPart:
    return {
        "stabilizationWindowSeconds": 300,
        "selectPolicy": "Max",
        "policies": [{"type": "Percent", "value": 50, "periodSeconds": 60}],
    }


class ScalingBehaviorValues(Section, frozen=True):
    """How fast the number of replicas changes: HPAScalingRules of Kubernetes."""

    scale_up: Annotated[KubernetesPart, Meta(description="At once, at most doubled or four more every 15 s")] = field(
        default_factory=_scale_up
    )
    scale_down: Annotated[
        KubernetesPart, Meta(description="After five minutes of less load, at most by half every minute")
    ] = field(default_factory=_scale_down)


class AdapterValues(Section, frozen=True):
    """The rules that prometheus-adapter needs to serve the metrics of pods to the HorizontalPodAutoscaler."""

    config_map: Annotated[
        bool, Meta(description="Create the ConfigMap RELEASE-adapter-rules, to be merged into the adapter's values")
    ] = True


class AutoscalingValues(Section, frozen=True):
    """Autoscaling. One type, since two autoscalers of one Deployment would undo each other's changes."""

    type: Annotated[
        Literal["none", "hpa", "keda"],
        Meta(description="hpa: HorizontalPodAutoscaler with prometheus-adapter; keda: ScaledObject"),
    ] = "none"
    min_replicas: Annotated[Count, Meta(description="Least replicas; 0 only with keda")] = 1
    max_replicas: Annotated[PositiveCount, Meta(description="Most replicas")] = 4
    metrics: Annotated[
        tuple[PodMetricValues, ...],
        Meta(
            description="Metrics of the pods; the one that needs the most replicas decides. For language models give"
            " vllm:kv_cache_usage_perc and vllm:num_requests_waiting: one request makes an engine count as busy"
        ),
    ] = DEFAULT_METRICS
    resources: Annotated[tuple[ResourceMetricValues, ...], Meta(description="Resources, beside the metrics")] = ()
    custom_metrics: Annotated[
        tuple[KubernetesPart, ...],
        Meta(description="Further MetricSpec objects of autoscaling/v2, for hpa; no counters, which only grow"),
    ] = ()
    behavior: Annotated[ScalingBehaviorValues, Meta(description="How fast the number of replicas changes")] = field(
        default_factory=ScalingBehaviorValues
    )
    adapter: Annotated[AdapterValues, Meta(description="Rules for prometheus-adapter, with type hpa")] = field(
        default_factory=AdapterValues
    )
    keda: Annotated[KedaValues, Meta(description="What only KEDA has")] = field(default_factory=KedaValues)
