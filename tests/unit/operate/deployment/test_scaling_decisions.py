"""What the shipped autoscalers decide, by the algorithms of Kubernetes and KEDA."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from conch.domain.arrivals import bursts
from conch.operate.deployment.command import k8s
from conch.operate.scaling.autoscaler import MetricReading, Pod
from conch.operate.scaling.commands.command import autoscale
from conch.operate.scaling.hpa.controller import HpaController
from conch.operate.scaling.hpa.spec import read_hpa
from conch.operate.scaling.keda.controller import KedaController
from conch.operate.scaling.keda.spec import read_scaled_object
from conch.operate.scaling.simulation.engine import simulate
from conch.operate.scaling.simulation.judgement import remarks
from conch.operate.scaling.simulation.queue_model import constant_service
from conch.operate.scaling.simulation.scenario import Scenario, TrafficCurve, diurnal, from_curve

Of = Callable[..., dict[str, Any]]
RATIO = "triton:queue_compute:ratio"
DOWN, EMPTY = MetricReading(error="connection refused"), MetricReading()
KEDA = {"type": "keda", "keda": {"prediction": {"enabled": True}}}


def pods(number: int) -> list[Pod]:
    return [Pod(f"gpt2-{index}") for index in range(number)]


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("reading", [DOWN, EMPTY], ids=["prometheus is down", "no series"])
def test_keda_keeps_the_replicas_without_readings(of: Of, replicas: int, reading: MetricReading) -> None:
    controller = KedaController(read_scaled_object(of({"autoscaling": KEDA}, "ScaledObject")))
    readings = [reading] * len(controller.spec.triggers)
    for second in range(0, 3600, 15):
        assert controller.sync(second, replicas, pods(replicas), readings).desired == replicas
        assert controller.poll(second, replicas, readings).desired == replicas


@pytest.mark.parametrize("reading", [DOWN, EMPTY], ids=["no adapter", "no values"])
def test_the_horizontal_pod_autoscaler_keeps_the_replicas_without_readings(of: Of, reading: MetricReading) -> None:
    controller = HpaController(read_hpa(of({"autoscaling": {"type": "hpa"}}, "HorizontalPodAutoscaler")))
    for second in range(0, 3600, 15):
        assert controller.sync(second, 3, pods(3), [reading] * 2).desired == 3


def test_load_leads_to_four_replicas_and_its_end_to_one(of: Of) -> None:
    controller = HpaController(read_hpa(of({"autoscaling": {"type": "hpa"}}, "HorizontalPodAutoscaler")))
    replicas, seen = 1, []
    for second in range(0, 1800, 15):
        ratio = 3.0 if second < 300 else 0.0
        readings = [MetricReading(by_pod={pod.name: value for pod in pods(replicas)}) for value in (ratio, ratio / 3)]
        replicas = controller.sync(second, replicas, pods(replicas), readings).desired
        seen.append(replicas)
    assert seen[:2] == [3, 4]
    # Five minutes of stabilization after the load, then at most half of the replicas a minute.
    assert set(seen[1 : (300 + 270) // 15]) == {4}
    down = list(dict.fromkeys(seen[(300 + 270) // 15 :]))
    assert down == [4, 2, 1]


@pytest.mark.parametrize(("ratio", "desired"), [(0.0, 3), (2.0, 4)], ids=["room", "overload"])
def test_without_utilization_the_ratio_adds_replicas_and_removes_none(of: Of, ratio: float, desired: int) -> None:
    controller = HpaController(read_hpa(of({"autoscaling": {"type": "hpa"}}, "HorizontalPodAutoscaler")))
    reading = MetricReading(by_pod={pod.name: ratio for pod in pods(3)})
    for second in range(0, 1800, 15):
        assert controller.sync(second, 3, pods(3), [reading, EMPTY]).desired == desired


# A replica serves 200 requests/s. A burst is shorter than the time to detect it and to start a replica, so that the
# least number of replicas must hold for its first minute.
TRAFFIC = {
    "a day": (diurnal(50, 500), 1, 4),
    "bursts": (from_curve(bursts(50, 200, 600, 3600), 4 * 3600, "bursts"), 2, 4),
    "a million": (diurnal(200_000, 1_000_000), 1000, 10_000),
}


@pytest.mark.slow
@pytest.mark.parametrize(("traffic", "least", "most"), TRAFFIC.values(), ids=TRAFFIC)
@pytest.mark.parametrize("scaler", ["hpa", "keda"])
def test_the_rendered_default_meets_the_objective_and_does_not_flap(
    traffic: TrafficCurve, least: int, most: int, scaler: str, tmp_path: Path
) -> None:
    path = tmp_path / "objects.yaml"
    limits = f"autoscaling.minReplicas={least},autoscaling.maxReplicas={most}"
    assert k8s(["render", "gpt2", f"--set=autoscaling.type={scaler},{limits}", f"--output={path}"]) == 0
    made = {document["kind"]: document for document in yaml.safe_load_all(path.read_text())}
    policy = read_hpa(made["HorizontalPodAutoscaler"]) if scaler == "hpa" else read_scaled_object(made["ScaledObject"])
    first = max(int(traffic.rates[0] / 140) + 1, least)
    run = simulate(
        scaler, policy, Scenario(traffic.with_noise(0.05, 0), constant_service(0.02, 4, 0.5), initial_replicas=first)
    )
    assert run.meets_objective, run.miss_share
    assert remarks(run) == []
    assert run.replica_hours < 0.8 * most * traffic.duration_s / 3600


def test_built_in_policies_are_what_the_chart_creates(of: Of, tmp_path: Path) -> None:
    """The simulator needs no Helm: it changes targets and metrics of the objects that were rendered by default."""
    simulated = tmp_path / "policy.yaml"
    rps = {"name": "conch_requests_per_second", "averageValue": "120"}
    prediction = {"enabled": True, "metric": rps["name"], "averageValue": rps["averageValue"]}
    keda = {"coldStartSeconds": 45, "prediction": prediction}
    ratio, kv = ({"name": RATIO, "averageValue": "1500m"}, {"name": "vllm:kv_cache_usage_perc", "averageValue": "700m"})
    cases = {
        "predict:120": {"type": "keda", "metrics": [rps], "keda": keda},
        "keda:120": {"type": "keda", "metrics": [rps], "keda": {"coldStartSeconds": 45}},
        "ratio:1500m+kv:0.7": {"type": "hpa", "metrics": [ratio, kv]},
    }
    command = ["simulate", "--traffic=burst:50:500:10m/30m", "--duration=1h", "--service-time=20ms", "--cold-start=45s"]
    for policy, autoscaling in cases.items():
        given = ("--name=gpt2", "--namespace=models", "--min-replicas=2", "--max-replicas=9", f"-o={simulated}")
        assert autoscale([*command, *given, f"--policy={policy}"]) == 0
        kind = "ScaledObject" if autoscaling["type"] == "keda" else "HorizontalPodAutoscaler"
        values = {"autoscaling": {"minReplicas": 2, "maxReplicas": 9, **autoscaling}}
        assert yaml.safe_load(simulated.read_text()) == of(values, kind), policy
