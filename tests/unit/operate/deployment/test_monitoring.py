"""What monitors, autoscalers, budgets and policies select exists; the rules are valid, and their alerts fire."""

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.chart_rules import camel_case, release_groups
from tools.deploy_files import CHART

from conch.base.yaml_documents import dump_documents
from conch.domain.limits import read_annotations
from conch.operate.deployment.chart import adapter_rules, shipped_metrics
from conch.operate.monitoring.rules.rule import InputSeries, Proof
from conch.operate.monitoring.rules.thresholds import Thresholds
from tests.support.alert_proofs import proof_file
from tests.support.debian import debian_tool
from tests.support.prometheus import Prometheus
from tests.unit.operate.deployment.value_sets import example_values

Of = Callable[..., dict[str, Any]]
EVERYTHING: dict[str, Any] = {
    "monitoring": {"enabled": True},
    "autoscaling": {"type": "hpa"},
    "networkPolicy": {"enabled": True},
    "service": {"labels": {"team": "vision"}},
    "podLabels": {"team": "vision"},
}


def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()


def test_the_server_reads_the_limits_of_the_chart_back(of: Of) -> None:
    entry = {"model": "a", "requests_per_second": 10}
    limits = {"maxQps": 80, "maxTokensPerSecond": 2000, "enforced": True, "entries": [entry]}
    read = read_annotations(of({"limits": limits}, "Deployment"))
    assert sorted((key.subject.model, key.quantity.value, value) for key, value in read.items()) == [
        ("*", "requests_per_second", 80),
        ("*", "tokens_per_second", 2000),
        ("a", "requests_per_second", 10),
    ]
    assert all(key.enforced for key in read if key.subject.model == "*")


# Selectors: what the source's monitor selected had no labels.


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_everything_that_selects_pods_selects_those_of_the_workload(of: Of, kind: str) -> None:
    values = {**EVERYTHING, "workload": {"kind": kind}}
    template = of(values, kind)["spec"]["template"]
    labels = template["metadata"]["labels"]
    ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert matches(of(values, kind)["spec"]["selector"]["matchLabels"], labels)
    for suffix in ("", "-metrics"):
        service = of(values, "Service", suffix)["spec"]
        assert matches(service["selector"], labels)
        assert {port["targetPort"] for port in service["ports"]} <= ports
    monitor = of(values, "PodMonitor")["spec"]
    assert matches(monitor["selector"]["matchLabels"], labels)
    assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} <= ports
    assert labels[monitor["jobLabel"]] == "gpt2"
    assert matches(of(values, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"], labels)
    policy = of(values, "NetworkPolicy")["spec"]
    assert matches(policy["podSelector"]["matchLabels"], labels)
    assert {port["port"] for rule in policy["ingress"] for port in rule["ports"]} == ports


def test_a_service_monitor_selects_the_service_for_metrics_and_no_other(of: Of) -> None:
    values = {"monitoring": {"enabled": True, "monitor": "ServiceMonitor"}}
    monitor, service = of(values, "ServiceMonitor")["spec"], of(values, "Service", "-metrics")
    assert matches(monitor["selector"]["matchLabels"], service["metadata"]["labels"])
    assert not matches(monitor["selector"]["matchLabels"], of(values, "Service")["metadata"]["labels"])
    assert {endpoint["port"] for endpoint in monitor["endpoints"]} <= {
        port["name"] for port in service["spec"]["ports"]
    }
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "gpt2"


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
@pytest.mark.parametrize(("scaler", "name"), [("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")])
def test_an_autoscaler_refers_to_the_workload_which_gives_no_number(of: Of, kind: str, scaler: str, name: str) -> None:
    values = {"autoscaling": {"type": scaler}, "workload": {"kind": kind}}
    target, workload = of(values, name)["spec"]["scaleTargetRef"], of(values, kind)
    assert target == {"apiVersion": workload["apiVersion"], "kind": kind, "name": workload["metadata"]["name"]}
    assert "replicas" not in workload["spec"]


# Autoscalers


RATIO, UTILIZED = "triton:queue_compute:ratio", "conch:instance_utilization:ratio_rate1m"


def pods_metric(name: str, target: str) -> dict[str, Any]:
    value = {"type": "AverageValue", "averageValue": target}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": value}}


def test_the_horizontal_pod_autoscaler_of_the_gpt2_values_is_that_of_the_tutorial(of: Of) -> None:
    spec = of(example_values()["gpt2_values.yaml"], "HorizontalPodAutoscaler")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 4)
    assert spec["metrics"] == [pods_metric(RATIO, "1000m")]


def test_both_autoscalers_follow_queue_and_utilization_by_default(of: Of) -> None:
    spec = of({"autoscaling": {"type": "hpa"}}, "HorizontalPodAutoscaler")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 4)
    assert spec["metrics"] == [pods_metric(RATIO, "1000m"), pods_metric(UTILIZED, "700m")]
    triggers = [
        trigger["metadata"] for trigger in of({"autoscaling": {"type": "keda"}}, "ScaledObject")["spec"]["triggers"]
    ]
    assert [trigger["threshold"] for trigger in triggers] == ["1", "0.7"]
    assert [name in trigger["query"] for name, trigger in zip((RATIO, UTILIZED), triggers, strict=True)] == [True, True]


def test_keda_keeps_the_replicas_while_prometheus_is_down(of: Of) -> None:
    spec = of({"autoscaling": {"type": "keda"}}, "ScaledObject")["spec"]
    assert spec["fallback"] == {"failureThreshold": 3, "replicas": 1, "behavior": "currentReplicasIfHigher"}
    assert [trigger["metadata"]["ignoreNullValues"] for trigger in spec["triggers"]] == ["false"] * 2
    assert [trigger["metricType"] for trigger in spec["triggers"]] == ["AverageValue"] * 2  # the fallback needs it


def test_keda_waits_for_ten_cold_starts_and_predicts_until_a_replica_answers(of: Of) -> None:
    keda = {"coldStartSeconds": 40, "prediction": {"enabled": True}}
    spec = of({"autoscaling": {"type": "keda", "keda": keda}}, "ScaledObject")["spec"]
    assert spec["cooldownPeriod"] == 400
    assert spec["triggers"][-1]["metadata"]["query"].endswith("[300s:15s], 55), 0)")


def test_every_metric_that_values_may_name_has_a_query() -> None:
    schema = json.loads((CHART / "values.schema.json").read_bytes())
    assert shipped_metrics() == schema["$defs"]["podMetric"]["enum"]


def test_every_threshold_of_the_rules_is_a_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())["monitoring"]["rules"]["thresholds"]
    assert values == {camel_case(threshold.name): threshold.default for threshold in fields(Thresholds)}


# Rules

_SHORT_S = 1800
# One of each kind: of records, of sums, of histograms, of limits, of engines, of targets.
_PROVED = (
    "ConchQueueComputeRatioHigh",
    "ConchQueueTimeHigh",
    "ConchLatencyBudgetExceeded",
    "ConchRequestRateAboveLimit",
    "ConchKvCacheFull",
    "ConchTargetDown",
)


def in_scope(series: InputSeries, job: str) -> InputSeries:
    """A series as Prometheus has it for a pod of a release."""
    name, _, rest = series.series.partition("{")
    labels = [label for label in re.findall(r'[\w]+="[^"]*"', rest) if not label.startswith(("job=", "namespace="))]
    labels += [f'job="{job}"', 'namespace="models"']
    return replace(series, series=f"{name}{{{', '.join(labels)}}}")


def scoped(proof: Proof, job: str, fires: int) -> Proof:
    series = tuple(in_scope(series_of_proof, job) for series_of_proof in proof.series)
    return replace(proof, what=f"{proof.what} ({job})", series=series, fires=fires)


@pytest.mark.slow
def test_promtool_confirms_that_the_alerts_fire_for_the_release_and_for_no_other(of: Of, tmp_path: Path) -> None:
    rule = of({"monitoring": {"enabled": True}}, "PrometheusRule")
    (tmp_path / "rules.yml").write_text(dump_documents([rule["spec"]]))
    check = subprocess.run(
        [debian_tool("promtool"), "check", "rules", tmp_path / "rules.yml"], capture_output=True, text=True
    )
    assert check.returncode == 0, check.stdout + check.stderr
    tests: list[dict[str, Any]] = []
    alerts = [alert for group in release_groups(Thresholds(), "gpt2", "models") for alert in group.alerts]
    for alert in (candidate for candidate in alerts if candidate.name in _PROVED):
        short = [proof for proof in alert.proofs if proof.at_s <= _SHORT_S and proof.what != "another job is down"]
        proofs = [scoped(proof, "gpt2", proof.fires) for proof in short]
        proofs += [scoped(proof, "llama", 0) for proof in short if proof.fires][:1]
        tests += proof_file(replace(alert, proofs=tuple(proofs)), "")["tests"] if proofs else []
    assert {test["name"].partition(":")[0] for test in tests} == set(_PROVED)
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": tests}
    (tmp_path / "proofs.yml").write_text(dump_documents([document]))
    done = subprocess.run(
        [debian_tool("promtool"), "test", "rules", tmp_path / "proofs.yml"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


# A real Prometheus, with two pods of two models each

_COUNTERS = {"busy": (900.0, 300.0), "idle": (0.0, 0.0)}  # model → queue and compute time per second, in µs


class _Metrics(BaseHTTPRequestHandler):
    """The metrics of a pod: `/a/metrics` of one whose requests wait three times as long as they compute."""

    def do_GET(self) -> None:
        pod, elapsed = self.path.split("/")[1], time.monotonic()
        lines = []
        for model, (queue, compute) in _COUNTERS.items():
            labels = f'{{model="{model}",version="1"}}'
            waited = queue * elapsed if pod == "a" else 0
            lines += [
                f"nv_inference_queue_duration_us{labels} {waited}",
                f"nv_inference_compute_infer_duration_us{labels} {compute * elapsed}",
                f"nv_inference_request_success{labels} {10 * elapsed}",
                f"nv_inference_pending_request_count{labels} {2 if pod == 'a' else 1}",
            ]
        body = "\n".join(lines).encode() + b"\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Be silent."""


@contextmanager
def pods() -> Iterator[int]:
    """Two pods behind one port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Metrics) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_prometheus_has_a_value_of_each_metric_for_each_pod(of: Of, tmp_path: Path) -> None:
    debian_tool("prometheus")
    values = {"monitoring": {"enabled": True, "intervalSeconds": 1, "scrapeTimeoutSeconds": 1}}
    values["monitoring"]["rules"] = {"intervalSeconds": 1}
    endpoint = of(values, "PodMonitor")["spec"]["podMetricsEndpoints"][0]
    keda = of({"autoscaling": {"type": "keda"}}, "ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
    with pods() as port:
        # What the operator makes of the PodMonitor, for two pods.
        jobs = [
            {
                "job_name": f"{pod}-of-release",
                "scrape_interval": endpoint["interval"],
                "metrics_path": f"/{pod}{endpoint['path']}",
                "static_configs": [
                    {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": "models", "pod": pod, "job": "gpt2"}}
                ],
            }
            for pod in "ab"
        ]
        rules = json.dumps(of(values, "PrometheusRule")["spec"])
        with Prometheus(tmp_path / "prometheus", jobs=jobs, rules=rules) as prometheus:
            prometheus.until('triton:queue_compute:ratio{pod="a",model="busy"} > 2.9')
            prometheus.until('triton:queue_compute:ratio{pod="b"}')
            by_metric = {}
            for rule in adapter_rules():
                query = rule["metricsQuery"].replace("<<.GroupBy>>", "pod")
                query = query.replace("<<.LabelMatchers>>", 'namespace="models",pod=~"a|b"')
                by_metric[rule["name"]["as"]] = {
                    series.labels["pod"]: series.value for series in prometheus.query(query)
                }
            total = prometheus.query(keda)
    ratio = by_metric["triton:queue_compute:ratio"]
    assert ratio == {"a": pytest.approx(3, rel=0.05), "b": 0}  # the busy model decides, not the mean with the idle one
    # A rate of a minute of which only seconds have passed.
    assert by_metric["conch_requests_per_second"] == {pod: pytest.approx(10, abs=10) for pod in "ab"}
    assert by_metric["nv_inference_pending_request_count"] == {"a": 4, "b": 2}
    assert [series.value for series in total] == [pytest.approx(3, rel=0.05)]
