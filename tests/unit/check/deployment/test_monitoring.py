"""Mistakes of articles about monitoring are found, and what works is not reported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conch.base.extras import install_command
from conch.operate.monitoring.commands.dashboards import dashboards
from conch.operate.monitoring.commands.rules import rules
from tests.unit.check.repository import findings_of, ids, only_finding, write
from tests.unit.operate.monitoring.rules.test_analysis import QPS_ARTICLE

# The exporter behind an SSH tunnel, with a Service that has no labels.
TUNNEL = """
apiVersion: v1
kind: Service
metadata: {name: gpu-dcgm-exporter, namespace: monitoring}
spec:
  ports: [{port: 9400, name: metrics, protocol: TCP}]
  clusterIP: None # headless
---
apiVersion: v1
kind: Endpoints
metadata: {name: gpu-dcgm-exporter, namespace: monitoring}
subsets:
  - addresses: [{ip: 10.0.24.31}]
    ports: [{port: 9400, name: metrics}]
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: gpu-dcgm-exporter
  namespace: monitoring
  labels: {release: kps}
spec:
  selector: {matchLabels: {app: gpu-dcgm-exporter}}
  endpoints:
    - port: metrics
      interval: 15s
"""
AUTOSCALER = """
apiVersion: v1
kind: Service
metadata:
  name: triton-metrics
spec:
  selector: {app: triton}
  ports: [{port: 8002, targetPort: 8002, protocol: TCP}]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: triton-hpa
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: triton}
  minReplicas: 2
  maxReplicas: 10
  metrics:
    - type: Pods
      pods:
        metric:
          name: nv_inference_request_success
        target:
          type: AverageValue
          averageValue: 1000
"""
POD_MONITOR = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: gpt2}
spec:
  selector: {matchLabels: {app: gpt2}}
  template:
    metadata: {labels: {app: gpt2, app.kubernetes.io/component: server}}
    spec:
      containers: [{name: triton, ports: [{containerPort: 8002, name: metrics}]}]
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: gpt2, labels: {release: prometheus}}
spec:
  selector: {matchLabels: {app: gpt2, app.kubernetes.io/component: server}}
  podMetricsEndpoints: [{port: metrics, path: /metrics}]
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: triton-metrics}
spec:
  groups:
    - name: autoscaling
      rules:
        - expr: rate(nv_inference_queue_duration_us[1m]) / rate(nv_inference_compute_infer_duration_us[1m])
          record: triton:queue_compute:ratio
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: gpt2}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: gpt2}
  maxReplicas: 4
  metrics:
    - {type: Pods, pods: {metric: {name: "triton:queue_compute:ratio"}, target: {type: AverageValue, averageValue: 1}}}
"""


def test_a_service_without_labels_is_not_monitored(tmp_path: Path) -> None:
    write(tmp_path / "tunnel.yaml", TUNNEL)
    finding = only_finding(tmp_path)
    assert finding.rule.id == "monitor-selects-nothing"
    assert finding.place.line == 22  # of the selector
    assert "Service 'gpu-dcgm-exporter' has no labels" in finding.message
    assert finding.what_to_do == "Add the labels to Service 'gpu-dcgm-exporter': app=gpu-dcgm-exporter"
    assert finding.related[0].place.line == 3


def test_a_service_with_the_labels_is_monitored(tmp_path: Path) -> None:
    text = TUNNEL.replace(
        "monitoring}\nspec:\n  ports", "monitoring, labels: {app: gpu-dcgm-exporter}}\nspec:\n  ports"
    )
    write(tmp_path / "service.yaml", text.partition("---")[0])
    write(tmp_path / "monitors" / "monitor.yaml", text.rpartition("---")[2])
    assert ids(tmp_path) == []


def test_a_service_in_another_namespace_is_not_monitored_unless_it_is_selected(tmp_path: Path) -> None:
    text = TUNNEL.replace("namespace: monitoring}\nspec", "namespace: gpu}\nspec")
    write(tmp_path / "tunnel.yaml", text)
    assert ids(tmp_path) == []  # its Service may be elsewhere
    write(
        tmp_path / "tunnel.yaml",
        text.replace("spec:\n  selector", "spec:\n  namespaceSelector: {any: true}\n  selector"),
    )
    assert ids(tmp_path) == ["monitor-selects-nothing"]


def test_the_alert_of_the_article_is_found(tmp_path: Path) -> None:
    write(tmp_path / "qps.yaml", QPS_ARTICLE)
    findings = [finding for finding in findings_of(tmp_path) if finding.rule.id == "alert-never-fires"]
    assert any("sets 'model' to the value of 'annotation_max_qps'" in finding.message for finding in findings)
    # The line of label_replace, in a block of several lines.
    assert {finding.place.line for finding in findings} == {8, 9}


def test_an_autoscaler_on_a_counter_is_found(tmp_path: Path) -> None:
    write(tmp_path / "hpa.yaml", AUTOSCALER)
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place.line) == ("autoscaler-counter", 21)
    assert "scales on 'nv_inference_request_success', a counter" in finding.message


def test_monitors_rules_and_autoscalers_that_work_are_not_reported(tmp_path: Path) -> None:
    write(tmp_path / "all.yaml", POD_MONITOR)
    assert ids(tmp_path) == []


def test_rules_and_dashboards_of_this_project_are_not_reported(tmp_path: Path) -> None:
    assert rules(["operator", "--output", str(tmp_path / "rules.yaml")]) == 0
    assert dashboards(["--output", str(tmp_path)]) == 0
    assert [finding.message for finding in findings_of(tmp_path)] == []


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        ("nv_inference_request_success{model='a'}", "autoscaler-counter"),
        ("sum(nv_inference_request_success)", "autoscaler-counter"),
        ("sum(rate(nv_inference_request_success[1m]))", None),
        ("sum(rate(nv_inference_request_sucess[1m]))", "autoscaler-metric"),
        ("sum(", "autoscaler-metric"),
        ("{{ .Values.query }}", None),
    ],
)
def test_queries_of_keda(query: str, rule: str | None, tmp_path: Path) -> None:
    triggers = json.dumps([{"type": "prometheus", "metadata": {"query": query}}])
    write(tmp_path / "a.yaml", f"kind: ScaledObject\nmetadata: {{name: a}}\nspec:\n  triggers: {triggers}\n")
    assert ids(tmp_path) == [document for document in [rule] if document]


def dashboard(*queries: str) -> str:
    return json.dumps({"panels": [{"title": "Panel", "targets": [{"expr": query} for query in queries]}]}, indent=1)


def test_queries_of_dashboards_are_checked_with_variables(tmp_path: Path) -> None:
    sound = 'sum by (model) (rate(nv_inference_request_success{model=~"$model"}[$__rate_interval]))'
    write(
        tmp_path / "sound.json",
        dashboard(sound, "topk($n, node_load1)", "my:record", 'conch_queue_depth{a="$a"} $op 1'),
    )
    write(tmp_path / "wrong.json", dashboard(sound, "rate(nv_inference_request_sucess[$__interval])"))
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place.path.name) == ("query-no-data", "wrong.json")
    assert "panel 'Panel': no metric is named 'nv_inference_request_sucess'; did you mean" in finding.message
    assert finding.place.line == 10


def test_dashboards_in_config_maps_are_checked(tmp_path: Path) -> None:
    data = json.dumps({"board.json": dashboard("conch_queue_dept")})
    write(tmp_path / "map.yaml", f"kind: ConfigMap\nmetadata: {{name: a}}\ndata: {data}\n# expr:\n")
    assert ids(tmp_path) == ["query-no-data"]


def test_queries_of_other_data_sources_are_not_checked(tmp_path: Path) -> None:
    panel = {"datasource": {"type": "loki"}, "targets": [{"expr": '{job="nv"} |= "error"'}]}
    write(tmp_path / "logs.json", json.dumps({"panels": [panel]}))
    assert ids(tmp_path) == []


@pytest.mark.parametrize(
    "text",
    ["expr: {{ .Values.expr }}\n", "expr: {% x %}[\n", "expr: 1\n---\n- 5\n", "kind: ServiceMonitor\nspec: 7\n"],
)
def test_templates_and_other_files_are_omitted(text: str, tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", text)
    write(tmp_path / "a.json", text if "{" in text else json.dumps(text))
    assert ids(tmp_path) == []


def test_without_the_libraries_a_notice_names_the_extra(tmp_path: Path) -> None:
    write(tmp_path / "rules.yaml", QPS_ARTICLE)
    program = (
        "import sys; sys.modules['yaml'] = None\n"
        "from conch.check.command import check\n"
        f"sys.exit(check([{str(tmp_path)!r}, '--ignore', 'repository-empty']))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert install_command("monitoring") in result.stdout
