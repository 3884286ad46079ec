"""What the shipped autoscalers decide, by the algorithms of Kubernetes and KEDA."""

from typing import Any

import pytest

from conch.deployment.kubernetes.objects import objects
from conch.deployment.kubernetes.release import Release
from conch.deployment.values.read import read_values
from conch.scaling.autoscaler import MetricReading, Pod
from conch.scaling.hpa.controller import HpaController
from conch.scaling.hpa.read import read_hpa
from conch.scaling.keda.controller import KedaController
from conch.scaling.keda.read import read_scaled_object

DOWN, EMPTY = MetricReading(error="connection refused"), MetricReading()
KEDA = {"type": "keda", "keda": {"prediction": {"enabled": True}}}


def of(autoscaling: dict[str, Any], kind: str) -> dict[str, Any]:
    """The object of a kind."""
    found = objects(read_values({"autoscaling": autoscaling}), Release("gpt2"))
    return next(each for each in found if each["kind"] == kind)


def pods(number: int) -> list[Pod]:
    return [Pod(f"gpt2-{index}") for index in range(number)]


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("reading", [DOWN, EMPTY], ids=["prometheus is down", "no series"])
def test_keda_keeps_the_replicas_without_readings(replicas: int, reading: MetricReading) -> None:
    controller = KedaController(read_scaled_object(of(KEDA, "ScaledObject")))
    readings = [reading] * len(controller.spec.triggers)
    for second in range(0, 3600, 15):
        assert controller.sync(second, replicas, pods(replicas), readings).desired == replicas
        assert controller.poll(second, replicas, readings).desired == replicas


@pytest.mark.parametrize("reading", [DOWN, EMPTY], ids=["no adapter", "no values"])
def test_the_horizontal_pod_autoscaler_keeps_the_replicas_without_readings(reading: MetricReading) -> None:
    controller = HpaController(read_hpa(of({"type": "hpa"}, "HorizontalPodAutoscaler")))
    for second in range(0, 3600, 15):
        assert controller.sync(second, 3, pods(3), [reading]).desired == 3


def test_load_leads_to_four_replicas_and_its_end_to_one() -> None:
    controller = HpaController(read_hpa(of({"type": "hpa"}, "HorizontalPodAutoscaler")))
    replicas, seen = 1, []
    for second in range(0, 1800, 15):
        ratio = 3.0 if second < 300 else 0.0
        reading = MetricReading(by_pod={pod.name: ratio for pod in pods(replicas)})
        replicas = controller.sync(second, replicas, pods(replicas), [reading]).desired
        seen.append(replicas)
    assert seen[:2] == [3, 4]
    # Five minutes of stabilization after the load, then at most half of the replicas a minute.
    assert set(seen[1 : (300 + 270) // 15]) == {4}
    down = list(dict.fromkeys(seen[(300 + 270) // 15 :]))
    assert down == [4, 2, 1]
