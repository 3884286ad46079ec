"""The loop, end to end and compressed: load rises, 1 → 4 replicas, load falls, back to 1, with an outage between.

The real Prometheus, HAProxy, servers and official client; what is Conch's is the autoscaler's loop.
"""

import json
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.operate.fleet.process import FleetProcess, runs

METRIC = "triton:queue_compute:ratio"
METRICS = f"/apis/custom.metrics.k8s.io/v1beta1/namespaces/default/pods/*/{METRIC}"

pytestmark = pytest.mark.slow


@dataclass
class Loop:
    """What was seen of the run."""

    report: dict[str, Any]
    output: Path
    metrics: tuple[int, Any]
    discovery: tuple[int, Any]
    during_outage: list[dict[str, Any]]
    outage_answer: tuple[int, Any]
    pids: list[int]
    status: int
    text: str


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    folder = tmp_path_factory.mktemp("fleet")
    output = folder / "output"
    flags = ["--speed=20", "--load=5s:1,25s:10,3s:1", f"--output={output}"]
    with FleetProcess("demo", *flags, log=folder / "fleet.log") as fleet:
        at_peak = fleet.until_ready(4)
        fleet.until("all replicas have a metric", lambda: len(fleet.get(METRICS)[1].get("items", ())) == 4)
        metrics, discovery = fleet.get(METRICS), fleet.get("/apis/custom.metrics.k8s.io/v1beta1")
        os.kill(at_peak["prometheus"]["pid"], signal.SIGSTOP)
        try:
            fleet.until("the metric is unknown", lambda: "<unknown>" in targets(fleet.state()))
            seen = [fleet.state() for _ in range(3) if time.sleep(1) is None]
            answer = fleet.get(METRICS)
        finally:
            os.kill(at_peak["prometheus"]["pid"], signal.SIGCONT)
        fleet.until("the metric is read again", lambda: "<unknown>" not in targets(fleet.state()))
        status = fleet.wait()
    pids = [at_peak["proxy"]["pid"], at_peak["prometheus"]["pid"], *(pod["pid"] for pod in at_peak["pods"])]
    report = json.loads((output / "fleet.json").read_text())
    return Loop(report, output, metrics, discovery, seen, answer, pids, status, fleet.text)


def targets(state: dict[str, Any]) -> str:
    return str(state["horizontalPodAutoscaler"]["targets"])


def test_replicas_follow_the_load_and_no_request_is_lost(loop: Loop) -> None:
    verdict = loop.report["verdict"]
    assert verdict["path"][0] == verdict["path"][-1] == 1, loop.text
    assert verdict["peak"] == 4
    assert (verdict["lost"], verdict["errors"]) == (0, {}), loop.text
    assert verdict["sent"] > 100
    assert loop.status == 0, loop.text


def test_ratio_and_latency_are_measured_with_one_replica_and_with_four(loop: Loop) -> None:
    """Not that four are better: on a machine with other work they may not be."""
    busy = [sample for sample in loop.report["samples"] if sample["clients"] == 10]
    alone = [sample["ratio"] for sample in busy if sample["ready"] == 1 and "ratio" in sample]
    together = [sample["ratio"] for sample in busy if sample["ready"] == 4 and "ratio" in sample]
    assert min(together) >= 0
    assert max(alone) > 0
    assert loop.report["verdict"]["scaled_p99_s"] > 0
    assert loop.report["verdict"]["peak_p99_s"] > 0


def test_the_metrics_api_answers_as_kubernetes_does(loop: Loop) -> None:
    status, document = loop.metrics
    assert status == 200
    assert (document["kind"], document["apiVersion"]) == ("MetricValueList", "custom.metrics.k8s.io/v1beta1")
    for item in document["items"]:
        assert item["metricName"] == METRIC
        assert (item["describedObject"]["kind"], item["describedObject"]["namespace"]) == ("Pod", "default")
        assert re.fullmatch(r"\d+m?", item["value"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", item["timestamp"])
    assert loop.discovery[1]["kind"] == "APIResourceList"
    assert f"pods/{METRIC}" in [resource["name"] for resource in loop.discovery[1]["resources"]]


def test_an_outage_of_prometheus_keeps_the_replicas(loop: Loop) -> None:
    assert [sample["replicas"]["desired"] for sample in loop.during_outage] == [4, 4, 4]
    conditions = [
        condition for state in loop.during_outage for condition in state["horizontalPodAutoscaler"]["conditions"]
    ]
    kinds = {(condition["type"], condition["status"], condition["reason"]) for condition in conditions}
    # That of the last decision persists, as in Kubernetes; the others are of the outage.
    last = {kind for kind in kinds if kind[0] == "ScalingLimited"}
    assert last <= {("ScalingLimited", "True", "TooManyReplicas"), ("ScalingLimited", "False", "DesiredWithinRange")}
    assert kinds - last == {
        ("AbleToScale", "True", "SucceededGetScale"),
        ("ScalingActive", "False", "FailedGetPodsMetric"),
    }
    status, answer = loop.outage_answer
    assert (status, answer["kind"], answer["reason"]) == (500, "Status", "InternalError")
    assert min(sample["desired"] for sample in loop.report["samples"]) == 1


def test_the_report_has_plot_page_and_object(loop: Loop) -> None:
    assert {path.name for path in loop.output.iterdir()} == {
        "fleet.svg",
        "fleet.json",
        "fleet.html",
        "policy.yaml",
        "logs",
    }
    assert (loop.output / "fleet.svg").read_text().count("<polyline") >= 4
    page = (loop.output / "fleet.html").read_text()
    assert "<svg" in page
    assert (
        "http://" not in page.replace("http://www.w3.org/2000/svg", "").partition("<script")[0].partition("<table")[0]
    )
    assert "not a deployment" in loop.text
    assert "compressed 20×" in loop.text


def test_nothing_is_left_running(loop: Loop) -> None:
    assert [pid for pid in loop.pids if runs(pid)] == []
