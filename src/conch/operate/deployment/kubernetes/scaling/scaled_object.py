"""KEDA's ScaledObject, and the TriggerAuthentication that its queries of Prometheus use."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from conch.operate.deployment.kubernetes.release import Release
from conch.operate.deployment.kubernetes.scaling.horizontal_pod_autoscaler import behavior, scale_target
from conch.operate.deployment.kubernetes.scaling.scaling_metrics import POD_METRICS
from conch.operate.deployment.values.deployment import DeploymentValues
from conch.operate.deployment.values.scaling.autoscaling import (
    AutoscalingValues,
    KedaValues,
    PodMetricName,
    PredictionValues,
)

_MIN_COOLDOWN_S = 300
_COLD_STARTS_OF_COOLDOWN = 10
_SUBQUERY_STEP = "15s"
# Mode → parameters, which are keys of the Secret too.
_AUTHENTICATION = {
    "bearer": ("bearerToken",),
    "basic": ("username", "password"),
    "tls": ("ca", "cert", "key"),
}


def scaled_object(values: DeploymentValues, release: Release) -> Iterator[dict[str, Any]]:
    """Yield the ScaledObject, and the authentication if the values ask for one."""
    scaling = values.autoscaling
    if scaling.type != "keda":
        return
    keda = scaling.keda
    yield {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": release.metadata("autoscaler", labels=values.monitoring.labels),
        "spec": {
            "scaleTargetRef": scale_target(values, release),
            "pollingInterval": keda.polling_interval,
            "cooldownPeriod": cooldown_s(keda),
            "minReplicaCount": scaling.min_replicas,
            "maxReplicaCount": scaling.max_replicas,
            "fallback": {
                "failureThreshold": keda.fallback.failure_threshold,
                "replicas": keda.fallback.replicas,
                "behavior": "currentReplicasIfHigher",
            },
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior(scaling)}},
            "triggers": list(_triggers(scaling, release)),
        },
    }
    if keda.authentication.mode:
        yield {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "TriggerAuthentication",
            "metadata": release.metadata("autoscaler", "-prometheus"),
            "spec": {
                "secretTargetRef": [
                    {"parameter": each, "name": keda.authentication.secret_name, "key": each}
                    for each in _AUTHENTICATION[keda.authentication.mode]
                ]
            },
        }


def cooldown_s(keda: KedaValues) -> int:
    """Return the idle seconds before the last replica ends: long enough that cold starts are rare."""
    return keda.cooldown_period or max(_MIN_COOLDOWN_S, _COLD_STARTS_OF_COOLDOWN * keda.cold_start_seconds)


def horizon_s(keda: KedaValues) -> int:
    """Return how far ahead the prediction looks: until a replica that is started now answers."""
    return keda.prediction.horizon_seconds or keda.cold_start_seconds + keda.polling_interval


def query(metric: PodMetricName, release: Release) -> str:
    """Return the sum of a metric over the pods of a release; the autoscaler divides it by the replicas."""
    return f"sum({POD_METRICS[metric].by('pod', _matchers(release))})"


def predicted_query(prediction: PredictionValues, horizon: int, release: Release) -> str:
    """Return the sum of a metric that a line through the past reaches at the horizon."""
    past = f"{query(prediction.metric, release)}[{prediction.window_seconds}s:{_SUBQUERY_STEP}]"
    return f"clamp_min(predict_linear({past}, {horizon}), 0)"


def _matchers(release: Release) -> str:
    # Both monitors take the job from the label `app`.
    return f'namespace="{release.namespace}",job="{release.name}"'


def _triggers(scaling: AutoscalingValues, release: Release) -> Iterator[dict[str, Any]]:
    for metric in scaling.metrics:
        yield _trigger(scaling, query(metric.name, release), metric.average_value, release)
    prediction = scaling.keda.prediction
    if prediction.enabled:
        expression = predicted_query(prediction, horizon_s(scaling.keda), release)
        yield _trigger(scaling, expression, prediction.average_value, release)
    for resource in scaling.resources:
        yield {
            "type": resource.name,
            "metricType": "Utilization",
            "metadata": {"value": str(resource.average_utilization)},
        }
    yield from (dict(each) for each in scaling.keda.triggers)


def _trigger(scaling: AutoscalingValues, expression: str, target: int | str, release: Release) -> dict[str, Any]:
    keda = scaling.keda
    found: dict[str, Any] = {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": keda.server_address,
            "query": expression,
            "threshold": _number(target),
            "activationThreshold": _number(keda.activation_threshold),
            # No series is an error, on which the fallback keeps the replicas; without replicas it is normal.
            "ignoreNullValues": "true" if scaling.min_replicas == 0 else "false",
        },
    }
    if keda.authentication.mode:
        found["metadata"]["authModes"] = keda.authentication.mode
        found["authenticationRef"] = {"name": f"{release.name}-prometheus"}
    return found


def _number(target: int | str) -> str:
    """Return a target as KEDA reads it: a decimal number without a unit."""
    text = str(target)
    number = Decimal(text.removesuffix("m"))
    return f"{(number / 1000 if text.endswith('m') else number).normalize():f}"
