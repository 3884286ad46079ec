"""Valid files in the styles of other projects give no errors and no warnings."""

from pathlib import Path

import pytest

from conch.check.finding import Severity
from tests.unit.check.repository import ECHO, findings_of, write

IMAGE = 'input [ { name: "IN" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 224, 224 ] } ]'
SCORES = 'output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1000 ] } ]'
TEXT = 'input { name: "IN" data_type: TYPE_STRING dims: -1 } output { name: "OUT" data_type: TYPE_STRING dims: -1 }'
CONTROL = "control { kind: CONTROL_SEQUENCE_%s %s }"
CONTROLS = (
    f'control_input [ {{ name: "START" {CONTROL % ("START", "fp32_false_true: [ 0, 1 ]")} }}, '
    f'{{ name: "END" {CONTROL % ("END", "int32_false_true: [ 0, 1 ]")} }}, '
    f'{{ name: "ID" {CONTROL % ("CORRID", "data_type: TYPE_UINT64")} }} ]'
)
CONFIGS = {
    "queue policies": f"""max_batch_size: 16 {IMAGE} {SCORES}
        dynamic_batching {{
          preferred_batch_size: [ 4, 8, 16 ] max_queue_delay_microseconds: 100
          priority_levels: 2 default_priority_level: 1
          default_queue_policy {{ timeout_action: REJECT default_timeout_microseconds: 100000 max_queue_size: 64 }}
          priority_queue_policy {{ key: 2 value {{ timeout_action: DELAY max_queue_size: 8 }} }} }}""",
    "several groups": f"""max_batch_size: 8 {IMAGE} {SCORES}
        instance_group [ {{ count: 2 kind: KIND_CPU }}, {{ count: 1 kind: KIND_CPU name: "spare" }} ]""",
    "all versions": f"max_batch_size: 4 {IMAGE} {SCORES} version_policy: {{ all {{ }} }}",
    "latest versions": f"max_batch_size: 4 {IMAGE} {SCORES} version_policy: {{ latest: {{ num_versions: 2 }} }}",
    "sequences, direct": f"max_batch_size: 4 {TEXT} sequence_batching {{ direct {{ }} {CONTROLS} }}",
    "sequences, oldest": f"""max_batch_size: 4 {TEXT} sequence_batching {{
        max_sequence_idle_microseconds: 5000000 oldest {{ max_candidate_sequences: 4 }} {CONTROLS} }}""",
    "warm-up": f"""max_batch_size: 4 {IMAGE} {SCORES} model_warmup [ {{ name: "zeros" batch_size: 4
        inputs {{ key: "IN" value: {{ data_type: TYPE_FP32 dims: [ 3, 224, 224 ] zero_data: true }} }} }} ]""",
    "ordered": f"max_batch_size: 8 {IMAGE} {SCORES} dynamic_batching {{ preserve_ordering: True }}",
    "angle brackets": f"max_batch_size: 4; {TEXT} instance_group < count: 1, kind: KIND_CPU >",
    "comments": f"# Copyright\nmax_batch_size : 4 # items\n{TEXT}\nparameters: {{ key: 'A' value: {{ }} }}",
    "joined strings": f"""max_batch_size: 4 {TEXT} parameters {{ key: "A" value {{ string_value: "a" "b" 'c' }} }}""",
    "cache": f"max_batch_size: 4 {TEXT} response_cache {{ enable: true }}",
    "batch of one": f"max_batch_size: 1 {TEXT} default_model_filename: 'model.py'",
}

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: triton, labels: {app: triton}, annotations: {prometheus.io/scrape: 'true'}}
spec:
  replicas: 1
  selector: {matchLabels: {app: triton}}
  template:
    metadata: {labels: {app: triton}}
    spec:
      terminationGracePeriodSeconds: 60
      volumes:
        - {name: models, nfs: {server: 192.168.9.9, path: /srv/models}}
        - {name: shm, emptyDir: {medium: Memory, sizeLimit: 1Gi}}
      containers:
        - name: triton
          image: "nvcr.io/nvidia/tritonserver:23.07-py3"
          imagePullPolicy: IfNotPresent
          resources: {limits: {nvidia.com/gpu: 1}}
          args: ["tritonserver", "--model-store=/models", "--strict-model-config=false", "--log-verbose=1"]
          volumeMounts: [{name: models, mountPath: /models}, {name: shm, mountPath: /dev/shm}]
          ports:
            - {containerPort: 8000, name: http}
            - {containerPort: 8001, name: grpc}
            - {containerPort: 8002, name: metrics}
          livenessProbe: {initialDelaySeconds: 15, failureThreshold: 30, httpGet: {path: /v2/health/live, port: http}}
          startupProbe: {periodSeconds: 10, failureThreshold: 30, httpGet: {path: /v2/health/ready, port: http}}
          readinessProbe: {initialDelaySeconds: 5, periodSeconds: 5, httpGet: {path: /v2/health/ready, port: http}}
          securityContext: {runAsUser: 1000, fsGroup: 1000}
"""
FILES = {
    "deployment.yaml": DEPLOYMENT.replace("          securityContext: {runAsUser: 1000, fsGroup: 1000}\n", ""),
    "service.yml": """
apiVersion: v1
kind: Service
metadata: {name: triton, labels: {app: triton}}
spec:
  type: ClusterIP
  selector: {app: triton}
  ports: [{port: 8000, targetPort: 8000, name: http}, {port: 8002, targetPort: 8002, name: metrics}]
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: triton, labels: {release: prometheus}}
spec: {selector: {matchLabels: {app: triton}}, endpoints: [{port: metrics, interval: 15s}]}
""",
    "hpa.yaml": """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: triton}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: triton}
  minReplicas: 1
  maxReplicas: 8
  metrics:
    - {type: Pods, pods: {metric: {name: avg_time_queue_us}, target: {type: AverageValue, averageValue: 50}}}
""",
    "alerts.yml": """
groups:
  - name: triton
    interval: 30s
    rules:
      - alert: TritonServerDown
        expr: up{job="triton"} == 0
        for: 1m
        labels: {severity: critical}
        annotations: {summary: "{{ $labels.instance }} is down"}
      - alert: HighFailureRatio
        expr: |
          sum by (model) (rate(nv_inference_request_failure[5m]))
            / sum by (model) (rate(nv_inference_request_success[5m])) > 0.05
        for: 5m
      - alert: GpuHot
        expr: DCGM_FI_DEV_GPU_TEMP > 85 or nv_gpu_power_usage / nv_gpu_power_limit > 0.95
      - record: model:latency_us:avg5m
        expr: rate(nv_inference_request_duration_us[5m]) / rate(nv_inference_request_success[5m])
      - alert: Slow
        expr: histogram_quantile(0.95, sum(rate(ts_inference_latency_microseconds_bucket[5m])) by (model_name, le)) > 9
""",
    "adapter-values.yaml": """
rules:
  default: false
  custom:
    - seriesQuery: 'nv_inference_queue_duration_us{namespace="default",pod!=""}'
      resources: {overrides: {namespace: {resource: "namespace"}, pod: {resource: "pod"}}}
      name: {matches: "^(.*)_us$", as: "avg_time_queue_us"}
      metricsQuery: 'avg(delta(nv_inference_queue_duration_us{<<.LabelMatchers>>}[30s])) by (<<.GroupBy>>)'
""",
    "rbac.yaml": """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules:
  - {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
""",
    "kustomization.yaml": "kind: Kustomization\nresources: [deployment.yaml]\n",
    "inference-service.yaml": """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: resnet}
spec:
  predictor:
    triton: {storageUri: "gs://models/torchscript", runtimeVersion: 23.05-py3}
""",
    "docker-compose.yml": """
version: "3.8"
x-logging: &logging {driver: json-file, options: {max-size: 10m}}
services:
  triton:
    image: nvcr.io/nvidia/tritonserver:23.10-py3
    command: ["tritonserver", "--model-repository=/models", "--exit-on-error=false", "--model-control-mode=poll"]
    shm_size: 1g
    ulimits: {memlock: -1, stack: 67108864}
    ports: ["8000:8000", "8001:8001", "8002:8002"]
    volumes: ["${PWD}/models:/models:ro", "cache:/root/.cache"]
    environment: [NVIDIA_DRIVER_CAPABILITIES=all, "GRAFANA_PASSWORD=${GRAFANA_PASSWORD:?}"]
    logging: *logging
    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]}}}
    healthcheck: {test: [CMD, curl, -sf, "http://localhost:8000/v2/health/ready"], interval: 10s}
  app:
    build: {context: ., dockerfile: docker/app.Dockerfile}
    image: app:latest
    depends_on: {triton: {condition: service_healthy}}
  grafana:
    image: grafana/grafana:8.4.4
    volumes: ["./grafana/dashboards/:/var/lib/grafana/dashboards/"]
volumes: {cache: }
""",
    "prometheus.yml": """
global: {scrape_interval: 15s}
rule_files: [alerts.yml]
scrape_configs:
  - {job_name: triton, static_configs: [{targets: ["triton:8002"]}]}
""",
    "ci.yml": """
on: [push]
jobs:
  test:
    runs-on: ubuntu-latest
    services: {triton: {image: "nvcr.io/nvidia/tritonserver:24.01-py3", ports: ["8000:8000"]}}
    steps: [{run: "docker build -t app:${{ github.sha }} ."}]
""",
    "Dockerfile": """# syntax=docker/dockerfile:1
ARG BASE=nvcr.io/nvidia/tritonserver:24.08-py3
FROM --platform=linux/amd64 ${BASE} AS base
ENV LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH HF_HOME=/cache TOKENIZERS_PARALLELISM=false
RUN --mount=type=cache,target=/root/.cache/pip pip install -r requirements.txt && rm -rf /var/lib/apt/lists/*
COPY --chown=1000:1000 models /models
HEALTHCHECK CMD curl -f localhost:8000/v2/health/ready
ENTRYPOINT ["tritonserver"]
CMD ["--model-repository=/models", "--log-verbose=1"]
""",
    "static.Dockerfile": """FROM golang:1.23 AS build
RUN go build -o /server
FROM scratch
COPY --from=build /server /server
CMD ["/server"]
""",
    "main.tf": """
terraform {
  required_version = ">= 1.5"
}
variable "hf_token" {
  type      = string
  sensitive = true
}
resource "aws_security_group_rule" "triton" {
  type        = "ingress"
  from_port   = 8000
  to_port     = 8001
  protocol    = "tcp"
  cidr_blocks = [var.vpc_cidr]
}
resource "helm_release" "triton" {
  name   = "triton"
  chart  = "./chart"
  values = [<<-EOT
    image: nvcr.io/nvidia/tritonserver:24.06-py3
    replicas: ${var.replicas}
    secretName: ${kubernetes_secret.token.metadata[0].name}
  EOT
  ]
}
resource "kubernetes_secret" "token" {
  data = { token = var.hf_token }
}
""",
    "run.sh": """#!/usr/bin/env bash
set -euo pipefail
docker run --gpus all --rm --shm-size=1g --ulimit memlock=-1 -p8000:8000 -v "${PWD}/models":/models \\
  nvcr.io/nvidia/tritonserver:22.12-py3 \\
  tritonserver --model-repository=/models --exit-on-error=false --load-model=a --load-model b 2>&1 | tee log
which tritonserver || echo "tritonserver is not installed"
mpirun --allow-run-as-root -n 1 /opt/tritonserver/bin/tritonserver --model-repository=$1 --grpc-port=8001 : -n 1 true
""",
    "GUIDE.md": """# Guide

Start `tritonserver --model-repository=/models` in `nvcr.io/nvidia/tritonserver:<yy.mm>-py3`; `tritonserver` prints:

```
I0101 tritonserver.cc:2264] | model_control_mode | MODE_NONE |
+----------------+---------+
```

```yaml
image: nvcr.io/nvidia/tritonserver:23.07-py3
```
""",
    "dashboard.json": """{
  "title": "Triton",
  "templating": {"list": [{"name": "model", "query": "label_values(nv_inference_count, model)"}]},
  "panels": [
    {"targets": [{"expr": "sum(rate(nv_inference_request_success{model=~\\"$model\\"}[$__rate_interval]))"}]},
    {"targets": [{"expr": "rate(nv_inference_count[5m]) / rate(nv_inference_exec_count[5m])"}]}
  ]
}
""",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations(name: str, tmp_path: Path) -> None:
    write(tmp_path / "m" / "config.pbtxt", f'{CONFIGS[name]}\nbackend: "python"')
    write(tmp_path / "m" / "1" / "model.py", ECHO)
    assert [
        (finding.rule.id, finding.message)
        for finding in findings_of(tmp_path)
        if finding.rule.severity is not Severity.NOTICE
    ] == []


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, FILES[name])
    assert [
        (finding.rule.id, finding.message)
        for finding in findings_of(tmp_path)
        if finding.rule.severity is not Severity.NOTICE
    ] == []


def test_all_files_together(tmp_path: Path) -> None:
    for name, text in FILES.items():
        write(tmp_path / name, text)
    write(tmp_path / "GUIDE.md", "Another folder's images are none of its business.\n")
    assert [
        (finding.rule.id, finding.message)
        for finding in findings_of(tmp_path)
        if finding.rule.severity is not Severity.NOTICE
    ] == []
