"""`conch autoscale simulate`: words of the command line as a scenario and policies, simulations, and their results."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import ceil, inf
from pathlib import Path
from typing import Any

import numpy as np

from conch.base.command_line.files import read_text, read_yaml, write_text
from conch.base.durations import parse_duration
from conch.base.errors import ConfigError
from conch.base.kubernetes.objects import as_given, listed
from conch.base.yaml_documents import dump_documents
from conch.domain.arrivals import parse_burst, parse_ramp, steady
from conch.domain.benchmark_document import read_benchmark
from conch.domain.load_traces import TraceError
from conch.operate.deployment.chart import shipped_autoscaler, shipped_metrics
from conch.operate.scaling.commands.comparison import document, page, report
from conch.operate.scaling.commands.flags import DEFAULT_POLICIES, SimulationSettings
from conch.operate.scaling.hpa.spec import HpaSettings, HpaSpec, read_hpa
from conch.operate.scaling.keda.spec import ScaledObjectSpec, read_scaled_object
from conch.operate.scaling.object_reader import format_quantity, milli, parse_quantity
from conch.operate.scaling.simulation.engine import PolicySpec, SimulationRun, simulate
from conch.operate.scaling.simulation.judgement import best
from conch.operate.scaling.simulation.queries import MetricDelays
from conch.operate.scaling.simulation.queue_model import ServiceModel, constant_service, language_model
from conch.operate.scaling.simulation.scenario import (
    ColdStart,
    Fault,
    FaultKind,
    Scenario,
    TrafficCurve,
    diurnal,
    from_counts,
    from_curve,
    from_times,
)

_TIMED_FAULTS = (FaultKind.PROMETHEUS_DOWN, FaultKind.METRIC_MISSING)
_HEADROOM = 0.7  # the utilization at which the first replicas start
_MAX_DURATION_S = 31 * 86400
_MAX_FACTOR = 3
_TARGET_HEADROOM = 0.7


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy and the objects that apply it; there are none for a fixed number."""

    name: str
    spec: PolicySpec
    objects: tuple[Mapping[str, Any], ...] = ()


def run_simulations(given: SimulationSettings) -> int:
    """Simulate policies under a load, print the comparison, and write what is asked for. Raises ConchError."""
    scenario = read_scenario(given)
    policies = from_files(given.hpa, given.scaled_object)
    words = given.policy or ([] if policies else list(DEFAULT_POLICIES))
    policies += [built_in(word, given, scenario) for word in words]
    if len({policy.name for policy in policies}) < len(policies):
        raise ConfigError("two policies have the same name")
    runs = [simulate(policy.name, policy.spec, scenario) for policy in policies]
    winner = best(runs)
    print(report(runs, winner), end="")
    return _write(given, runs, next(policy for policy in policies if policy.name == winner.name))


def _write(given: SimulationSettings, runs: Sequence[SimulationRun], winner: NamedPolicy) -> int:
    status = 0
    if winner.objects:
        text = dump_documents(winner.objects)
        if given.output is None:
            print(f"\n# {winner.name}: kubectl apply -f - takes this\n{text}", end="")
        else:
            status |= write_text("conch autoscale simulate", given.output, text)
    if given.json is not None:
        status |= write_text("conch autoscale simulate", given.json, document(runs, winner.name))
    if given.html is not None:
        status |= write_text("conch autoscale simulate", given.html, page(runs, winner.name))
    return status


def read_scenario(given: SimulationSettings) -> Scenario:
    """Return the scenario of the arguments. Raises ConfigError and ValueError."""
    if not 1 <= given.duration <= _MAX_DURATION_S:
        raise ConfigError(f"--duration: expected 1 s to 31 days, got {given.duration:,.10g} s")
    service = _service(given)
    traffic = _traffic(given)
    if not 0 < traffic.duration_s <= _MAX_DURATION_S:
        raise ConfigError(f"--traffic: expected at most 31 days, got {traffic.duration_s / 86400:.1f}")
    faults = tuple(_fault(text) for text in given.fault)
    for fault in faults:
        if fault.at_s >= traffic.duration_s:
            raise ConfigError(
                f"--fault: {fault.kind.value} begins at {fault.at_s:,} s, after the load, which lasts"
                f" {traffic.duration_s:,} s"
            )
    slo = {"latency": given.slo.get("latency"), "ttft": given.slo.get("ttft")}
    if (slo["latency"] is None) is (slo["ttft"] is None):
        raise ConfigError("--slo: expected one target, latency:200ms or ttft:1s")
    if slo["ttft"] is not None and given.llm is None:
        raise ConfigError("--slo ttft needs --llm")
    first = needed_replicas(float(traffic.rates[0]), service)
    return Scenario(
        traffic,
        service,
        ColdStart(pull_s=int(given.image_pull), load_s=ceil(given.cold_start)),
        slo_s=slo["latency"] or slo["ttft"] or 0.0,
        slo_is_first_token=slo["ttft"] is not None,
        objective=given.objective,
        initial_replicas=first if given.initial_replicas is None else given.initial_replicas,
        max_queue=inf if given.max_queue is None else given.max_queue,
        timing=MetricDelays(
            max(int(given.scrape_interval), 1), max(int(given.rule_interval), 1), int(given.adapter_lag)
        ),
        settings=HpaSettings(sync_period_s=max(int(given.sync_period), 1)),
        faults=faults,
    )


def needed_replicas(rate: float, service: ServiceModel) -> int:
    """Return the replicas that serve a rate with some headroom."""
    return max(ceil(rate / (service.capacity * _HEADROOM)), 1)


def _traffic(given: SimulationSettings) -> TrafficCurve:
    kind, _, rest = given.traffic.partition(":")
    seconds = int(given.duration)
    if kind == "counts":
        interval, _, path = rest.partition(":")
        return from_counts(_numbers(path), int(parse_duration(interval)), Path(path).name, given.scale)
    if kind in {"steady", "diurnal", "burst", "ramp"}:
        synthetic = _synthetic(kind, rest, seconds)
        scaled = TrafficCurve(synthetic.name, synthetic.rates * given.scale)
        return scaled.with_noise(given.noise, given.seed)
    from conch.domain.load_traces import read_trace

    try:
        trace = read_trace(given.traffic)
    except TraceError as error:
        known = "steady, diurnal, burst, ramp, counts"
        raise ConfigError(f"--traffic: {error}; expected {known}, or a file of a recorded load") from None
    return from_times(trace.times_s, trace.name, given.scale)


def _synthetic(kind: str, rest: str, seconds: int) -> TrafficCurve:
    if kind == "steady":
        return from_curve(steady(_rate(rest)), seconds, f"{rest} requests/s")
    if kind == "burst":
        return from_curve(parse_burst(rest), seconds, f"bursts {rest}")
    if kind == "ramp":
        return from_curve(parse_ramp(rest, seconds), seconds, f"ramp {rest}")
    parts = rest.split(":")
    if len(parts) not in {2, 3}:
        raise ConfigError(
            f"--traffic: 'diurnal:{rest}' is not valid; expected diurnal:LOW:HIGH or diurnal:LOW:HIGH:HOUR"
        )
    return diurnal(_rate(parts[0]), _rate(parts[1]), float(parts[2]) if len(parts) == 3 else 20.0, seconds)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e9:
        raise ConfigError(f"--traffic: '{text}' is not a rate; expected requests per second, such as 200")
    return value


def _numbers(path: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return the numbers of a file, one a line: the last column, so that a time may stand before."""
    numbers = []
    for number, line in enumerate(read_text(Path(path)).splitlines(), 1):
        cell = line.replace(",", " ").split()[-1:] or [""]
        if not cell[0] or line.startswith("#"):
            continue
        try:
            numbers.append(float(cell[0]))
        except ValueError:
            if number > 1:  # the first line may name columns
                raise ConfigError(f"{path}:{number}: '{cell[0]}' is not a number of requests") from None
    return np.array(numbers)


def _service(given: SimulationSettings) -> ServiceModel:
    if given.llm is not None and given.service_time is not None:
        raise ConfigError("--service-time and --llm exclude each other; give one of them")
    if given.llm is not None:
        prompt, output = given.llm
        return language_model(prompt, output, given.prefill_rate, given.decode_rate, given.slots, given.kv_tokens)
    if given.service_time is None:
        raise ConfigError("--service-time or --llm is required")
    if given.service_time.endswith((".json", ".html")):
        return _from_report(Path(given.service_time), given.instances)
    seconds = parse_duration(given.service_time)
    if seconds <= 0:
        raise ConfigError(f"--service-time: expected a time above 0, such as 20ms, got {given.service_time}")
    base = constant_service(seconds, given.instances or 1, given.variation)
    max_batch, batch_cost = _batch(given.batch)
    return replace(base, max_batch=max_batch, batch_cost=batch_cost)


def _batch(text: str) -> tuple[int, float]:
    size, _, cost = text.partition(":")
    try:
        max_batch, batch_cost = int(size), float(cost or 1)
    except ValueError:
        max_batch, batch_cost = 0, 0.0
    if max_batch < 1 or not 0 <= batch_cost <= 1:
        raise ConfigError(f"--batch: '{text}' is not valid; expected SIZE or SIZE:COST, such as 8:0.3")
    return max_batch, batch_cost


def _from_report(path: Path, instances: int | None) -> ServiceModel:
    """Return the times of the lowest load of a report, and as many instances as its highest throughput needs."""
    document = read_benchmark(path)
    try:
        levels = [
            (level["throughput"]["value"], (level.get("service_latency") or level["latency"] or {}).get("histogram"))
            for level in document["measurements"]
        ]
        answered = sorted((float(rate), histogram) for rate, histogram in levels if histogram)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is not a certificate of conch bench: {error!r}") from None
    if not answered:
        raise ConfigError(f"{path}: no level with a successful request")
    edges, counts = zip(*answered[0][1], strict=True)
    service = ServiceModel(np.array(edges), shares=np.array(counts, np.float64))
    return replace(service, servers=instances or max(round(answered[-1][0] * service.mean_s), 1))


def _fault(text: str) -> Fault:
    kind_text, _, rest = text.partition(":")
    kinds = [known_kind.value for known_kind in FaultKind]
    if kind_text not in kinds:
        raise ConfigError(f"--fault: '{kind_text}' is not a fault; expected one of {', '.join(kinds)}")
    kind, (at, _, more) = FaultKind(kind_text), rest.partition(":")
    if kind in _TIMED_FAULTS:
        if not more:
            raise ConfigError(f"--fault: '{text}' needs a time; expected {kind_text}:3h:10m")
        return Fault(kind, int(parse_duration(at)), int(parse_duration(more)))
    if more and not more.isdecimal():
        raise ConfigError(f"--fault: '{more}' is not a number of replicas; expected {kind_text}:3h:2")
    return Fault(kind, int(parse_duration(at)), count=int(more or 1))


def from_files(hpas: Sequence[Path], scaled_objects: Sequence[Path]) -> list[NamedPolicy]:
    """Read policies. Raises ConfigError."""
    policies = [
        _read_policy(path, autoscaler, read_hpa)
        for path in hpas
        for autoscaler in _documents(path, "HorizontalPodAutoscaler")
    ]
    policies += [
        _read_policy(path, scaled_object, read_scaled_object)
        for path in scaled_objects
        for scaled_object in _documents(path, "ScaledObject")
    ]
    return policies


def _read_policy(
    path: Path, document: dict[str, Any], read: Callable[[Mapping[str, Any]], HpaSpec | ScaledObjectSpec]
) -> NamedPolicy:
    try:
        spec = read(document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return NamedPolicy(f"{path.stem}/{spec.name}", spec, (as_given(document),))


def _documents(path: Path, kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind in a file, which may have others."""
    objects = [document for document in listed(read_yaml(path)) if document.get("kind") == kind]
    if not objects:
        raise ConfigError(f"{path}: no object of the kind {kind}")
    return objects


def built_in(word: str, given: SimulationSettings, scenario: Scenario) -> NamedPolicy:
    """Return a built-in policy by NAME or NAME:TARGET, or an HPA with several as NAME+NAME. Raises ConfigError."""
    parts = [part.partition(":")[::2] for part in word.split("+")]
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
    targets = {part: _target(part, target, scenario) for part, target in parts}
    if name in _OF_KEDA:
        scaled = _scaled_object(name, targets[name], maximum, given, scenario)
        return NamedPolicy(word, read_scaled_object(scaled), (scaled,))
    autoscaler = _autoscaler(targets, maximum, given)
    return NamedPolicy(word, read_hpa(autoscaler), (autoscaler,))


def _target(name: str, text: str, scenario: Scenario) -> float:
    number = parse_quantity(text) if text else _default_target(name, scenario)
    if number is None or number <= 0:
        raise ConfigError(f"--policy: '{text}' is not a target; expected a quantity such as 500m or 2")
    return number


def _default_target(name: str, scenario: Scenario) -> float:
    service = scenario.service
    if name in {"rps", "predict", "keda"}:
        return round(service.capacity * _TARGET_HEADROOM, 2)
    defaults = {
        "ratio": 1.0,
        "utilization": _TARGET_HEADROOM,
        "pending": 1.0,
        "counter": 1000.0,
        "kv": 0.8,
        "waiting": 1.0,
    }
    return scenario.slo_s / 2 if name == "ttft" else defaults.get(name, 1.0)


def _autoscaler(targets: Mapping[str, float], maximum: int, given: SimulationSettings) -> dict[str, Any]:
    """Return the chart's HorizontalPodAutoscaler with other metrics, by the names of the policies."""
    autoscaler = shipped_autoscaler("HorizontalPodAutoscaler", given.name, given.namespace)
    spec = autoscaler["spec"]
    spec |= {"minReplicas": given.min_replicas, "maxReplicas": maximum, "metrics": []}
    for name, target in targets.items():
        value = {"type": "AverageValue", "averageValue": format_quantity(target)}
        metric = _POD_METRICS.get(name, _COUNTER)
        spec["metrics"].append({"type": "Pods", "pods": {"metric": {"name": metric}, "target": value}})
    if "counter" in targets:  # the chart refuses counters, which only grow; tutorials have them
        del spec["behavior"]
    return autoscaler


def _scaled_object(
    name: str, target: float, maximum: int, given: SimulationSettings, scenario: Scenario
) -> dict[str, Any]:
    """Return the chart's ScaledObject with the triggers of a policy. Raises ConfigError."""
    scaled = shipped_autoscaler("ScaledObject", given.name, given.namespace)
    spec = scaled["spec"]
    spec |= {"minReplicaCount": given.min_replicas, "maxReplicaCount": maximum}
    *of_pods, prediction = spec["triggers"]
    triggers = dict(zip(shipped_metrics(), of_pods, strict=True))
    if name == "ttft":
        waiting = _with_target(triggers["vllm:num_requests_waiting"], 1000, given)
        spec["triggers"] = [waiting, _time_to_first_token(target)]
        return scaled
    if given.min_replicas == 0:
        raise ConfigError(
            "--min-replicas: 0 needs a trigger that does not read metrics of pods; give such a ScaledObject "
            "with --scaled-object"
        )
    cold_s = max(scenario.cold_start.total_s, 1)
    spec["cooldownPeriod"] = max(_MIN_COOLDOWN_S, _COLD_STARTS_OF_COOLDOWN * cold_s)
    spec["triggers"] = [_with_target(triggers[_POD_METRICS["rps"]], target, given)]
    if name == "predict":  # until a replica that is started now answers
        ahead = _HORIZON.sub(f", {cold_s + spec['pollingInterval']}), 0)", prediction["metadata"]["query"])
        prediction["metadata"]["query"] = ahead
        spec["triggers"].append(_with_target(prediction, target, given))
    return scaled


def _with_target(trigger: dict[str, Any], target: float, given: SimulationSettings) -> dict[str, Any]:
    metadata = {"threshold": f"{Decimal(milli(target)) / 1000:f}"}
    if given.min_replicas == 0:  # without replicas, no series is normal
        metadata["ignoreNullValues"] = "true"
    return {**trigger, "metadata": {**trigger["metadata"], **metadata}}


def _time_to_first_token(target: float) -> dict[str, Any]:
    query = (
        "sum(rate(vllm:time_to_first_token_seconds_sum[1m])) / sum(rate(vllm:time_to_first_token_seconds_count[1m]))"
    )
    metadata = {
        "serverAddress": "http://prometheus-operated.monitoring.svc:9090",
        "query": query,
        "threshold": f"{target:g}",
        "ignoreNullValues": "false",
    }
    return {"type": "prometheus", "metricType": "Value", "metadata": metadata}


_POD_METRICS = {
    "ratio": "triton:queue_compute:ratio",
    "utilization": "conch:instance_utilization:ratio_rate1m",
    "rps": "conch_requests_per_second",
    "pending": "nv_inference_pending_request_count",
    "kv": "vllm:kv_cache_usage_perc",
    "waiting": "vllm:num_requests_waiting",
}
_COUNTER = "nv_inference_request_success"
_OF_KEDA = ("predict", "keda", "ttft")
_BUILT_IN = (*_POD_METRICS, *_OF_KEDA, "counter", "fixed")
# The chart's scaled-object.yaml has the same.
_MIN_COOLDOWN_S = 300
_COLD_STARTS_OF_COOLDOWN = 10
_HORIZON = re.compile(r", \d+\), 0\)$")
