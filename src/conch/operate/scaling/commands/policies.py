"""Policies from files, and built-in ones: the objects that the chart creates with these values."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch import __version__
from conch.base.errors import ConfigError
from conch.base.kubernetes.objects import as_given, listed
from conch.operate.scaling.commands.scenario import needed_replicas
from conch.operate.scaling.hpa.read import read_hpa
from conch.operate.scaling.hpa.spec import HpaSpec
from conch.operate.scaling.keda.read import read_scaled_object
from conch.operate.scaling.keda.spec import ScaledObjectSpec
from conch.operate.scaling.quantity import format_quantity, parse_quantity
from conch.operate.scaling.simulation.policy import PolicySpec
from conch.operate.scaling.simulation.scenario import Scenario

_MAX_FACTOR = 3
_HEADROOM = 0.7


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy and the objects that apply it; there are none for a fixed number."""

    name: str
    spec: PolicySpec
    objects: tuple[Mapping[str, Any], ...] = ()


def from_files(hpas: Sequence[Path], scaled_objects: Sequence[Path]) -> list[NamedPolicy]:
    """Read policies. Raises ConfigError."""
    found = [_read(path, each, read_hpa) for path in hpas for each in _documents(path, "HorizontalPodAutoscaler")]
    found += [
        _read(path, each, read_scaled_object) for path in scaled_objects for each in _documents(path, "ScaledObject")
    ]
    return found


def _read(
    path: Path, document: dict[str, Any], read: Callable[[Mapping[str, Any]], HpaSpec | ScaledObjectSpec]
) -> NamedPolicy:
    try:
        spec = read(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return NamedPolicy(f"{path.stem}/{spec.name}", spec, (as_given(document),))


def _documents(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind in a file, which may have others."""
    from conch.base.command_line.files import read_yaml

    found = [document for document in listed(read_yaml(path)) if document.get("kind") == kind]
    if not found:
        raise ConfigError(f"{path}: no object of the kind {kind}")
    return found


def built_in(word: str, given: Namespace, scenario: Scenario) -> NamedPolicy:
    """Return a built-in policy by NAME or NAME:TARGET, or an HPA with several as NAME+NAME. Raises ConfigError."""
    parts = [each.partition(":")[::2] for each in word.split("+")]
    for name, _ in parts:
        if name not in _BUILT_IN or (len(parts) > 1 and name not in _POD_METRICS):
            known = _POD_METRICS if len(parts) > 1 else _BUILT_IN
            raise ConfigError(f"--policy: '{name}' is not a policy here; expected one of {', '.join(known)}")
    peak = needed_replicas(float(scenario.traffic.rates.max()), scenario.service)
    name, text = parts[0]
    if name == "fixed":
        if text and not text.isdecimal():
            raise ConfigError(f"--policy: '{text}' is not a number of replicas; expected fixed:4")
        return NamedPolicy(word, int(text or peak))
    maximum = given.max_replicas or max(_MAX_FACTOR * peak, 4)
    scaling = _BUILT_IN[name](_target(name, text, scenario), scenario)
    for more, target in parts[1:]:
        scaling["metrics"] += _BUILT_IN[more](_target(more, target, scenario), scenario)["metrics"]
    return _deployed(word, {"minReplicas": given.min_replicas, "maxReplicas": maximum, **scaling}, given)


def _target(name: str, text: str, scenario: Scenario) -> float:
    number = parse_quantity(text) if text else _default_target(name, scenario)
    if number is None or number <= 0:
        raise ConfigError(f"--policy: '{text}' is not a target; expected a quantity such as 500m or 2")
    return number


def _deployed(word: str, scaling: Mapping[str, Any], given: Namespace) -> NamedPolicy:
    from conch.operate.deployment.kubernetes.release import Release
    from conch.operate.deployment.kubernetes.scaling.horizontal_pod_autoscaler import horizontal_pod_autoscaler_object
    from conch.operate.deployment.kubernetes.scaling.scaled_object import scaled_object
    from conch.operate.deployment.values.read import read_values

    release = Release(given.name, given.namespace, __version__)
    counter = scaling.get("counter")
    values = read_values({"autoscaling": {key: each for key, each in scaling.items() if key != "counter"}})
    if values.autoscaling.type == "keda":
        objects = tuple(scaled_object(values, release))
        return NamedPolicy(word, read_scaled_object(objects[0]), objects)
    document = horizontal_pod_autoscaler_object(values, release)
    if counter is not None:
        # The chart refuses counters, which only grow; tutorials have them.
        document["spec"]["metrics"] = [_pods_metric("nv_inference_request_success", counter)]
        del document["spec"]["behavior"]
    return NamedPolicy(word, read_hpa(document), (document,))


def _pods_metric(name: str, target: float) -> dict[str, Any]:
    value = {"type": "AverageValue", "averageValue": format_quantity(target)}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": value}}


def _default_target(name: str, scenario: Scenario) -> float:
    service = scenario.service
    if name in {"rps", "predict", "keda"}:
        return round(service.capacity * _HEADROOM, 2)
    defaults = {"ratio": 1.0, "utilization": _HEADROOM, "pending": 1.0, "counter": 1000.0, "kv": 0.8, "waiting": 1.0}
    return scenario.slo_s / 2 if name == "ttft" else defaults.get(name, 1.0)


def _hpa(metric: str) -> Callable[[float, Scenario], dict[str, Any]]:
    return lambda target, _: {
        "type": "hpa",
        "metrics": [{"name": metric, "averageValue": format_quantity(target)}],
    }


def _keda(metric: str, *, predicts: bool) -> Callable[[float, Scenario], dict[str, Any]]:
    def values(target: float, scenario: Scenario) -> dict[str, Any]:
        average = format_quantity(target)
        cold_s = max(scenario.cold_start.total_s, 1)
        keda: dict[str, Any] = {"coldStartSeconds": cold_s}
        if predicts:
            keda["prediction"] = {"enabled": True, "metric": metric, "averageValue": average}
        return {"type": "keda", "metrics": [{"name": metric, "averageValue": average}], "keda": keda}

    return values


def _ttft(target: float, scenario: Scenario) -> dict[str, Any]:
    del scenario
    query = (
        "sum(rate(vllm:time_to_first_token_seconds_sum[1m])) / sum(rate(vllm:time_to_first_token_seconds_count[1m]))"
    )
    metadata = {
        "serverAddress": "http://prometheus-operated.monitoring.svc:9090",
        "query": query,
        "threshold": f"{target:g}",
        "ignoreNullValues": "false",
    }
    trigger = {"type": "prometheus", "metricType": "Value", "metadata": metadata}
    waiting = {"name": "vllm:num_requests_waiting", "averageValue": "1000"}
    return {"type": "keda", "metrics": [waiting], "keda": {"triggers": [trigger]}}


_POD_METRICS = {
    "ratio": "triton:queue_compute:ratio",
    "utilization": "conch:instance_utilization:ratio_rate1m",
    "rps": "conch_requests_per_second",
    "pending": "nv_inference_pending_request_count",
    "kv": "vllm:kv_cache_usage_perc",
    "waiting": "vllm:num_requests_waiting",
}
_BUILT_IN: Mapping[str, Callable[[float, Scenario], dict[str, Any]]] = {
    **{name: _hpa(metric) for name, metric in _POD_METRICS.items()},
    "predict": _keda("conch_requests_per_second", predicts=True),
    "keda": _keda("conch_requests_per_second", predicts=False),
    "ttft": _ttft,
    "counter": lambda target, _: {"type": "hpa", "counter": target},
    "fixed": lambda target, _: {"fixed": target},
}
