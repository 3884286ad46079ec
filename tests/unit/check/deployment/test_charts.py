"""Helm charts: what they render is checked, and findings have places in the templates or values."""

import os
from pathlib import Path

import pytest

from conch.base import helm as helm_renderer
from conch.base.extras import install_command
from conch.check.deployment.charts import template_line
from tests.support.helm_process import require_helm
from tests.unit.check.repository import findings_of, ids, only_finding, write

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .Release.Name }}
spec:
  replicas: {{ .Values.replicas }}
  selector:
    matchLabels:
      app: {{ .Chart.Name }}
  template:
    metadata:
      labels:
        app: {{ .Chart.Name }}
    spec:
      containers:
        - name: triton
          image: "{{ .Values.image }}"
          args:
            - tritonserver
            {{- range .Values.serverArgs }}
            - {{ . }}
            {{- end }}
          readinessProbe:
            httpGet:
              path: /v2/health/ready
              port: {{ .Values.port }}
"""
VALUES = """
replicas: 1
image: nvcr.io/nvidia/tritonserver:25.01-py3
port: 8000
serverArgs:
  - '--model-repository=/models'
"""


def chart(root: Path, template: str = DEPLOYMENT, values: str = VALUES) -> Path:
    write(root / "chart" / "Chart.yaml", "apiVersion: v2\nname: triton\nversion: 1.0.0\n")
    write(root / "chart" / "values.yaml", values)
    return write(root / "chart" / "templates" / "deployment.yaml", template)


@pytest.fixture
def helm() -> None:
    require_helm()


@pytest.mark.slow
@pytest.mark.usefixtures("helm")
def test_a_sound_chart(tmp_path: Path) -> None:
    chart(tmp_path)
    assert [finding.message for finding in findings_of(tmp_path)] == []


@pytest.mark.slow
@pytest.mark.usefixtures("helm")
def test_a_chart_of_a_language_model_on_several_nodes() -> None:
    assert [finding.message for finding in findings_of(Path(__file__).parents[1] / "charts" / "trtllm")] == []


@pytest.mark.slow
@pytest.mark.usefixtures("helm")
def test_a_flag_in_the_values(tmp_path: Path) -> None:
    chart(tmp_path, values=VALUES.replace("--model-repository=/models", "--cpu-only"))
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place.path.name, finding.place.line) == ("flag-unknown", "values.yaml", 5)


@pytest.mark.slow
@pytest.mark.usefixtures("helm")
def test_a_port_that_only_the_rendered_object_has(tmp_path: Path) -> None:
    template = chart(tmp_path, values=VALUES.replace("port: 8000", "port: web"))
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place.path, finding.place.line) == ("port-unknown", template, 23)


@pytest.mark.slow
@pytest.mark.usefixtures("helm")
def test_a_chart_that_helm_refuses(tmp_path: Path) -> None:
    template = chart(tmp_path, DEPLOYMENT.replace(".Chart.Name }}", ".Chart.Name | nothing }}", 1))
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place.path, finding.place.line) == ("chart-invalid", template, 9)
    assert "nothing" in finding.message


@pytest.mark.slow
@pytest.mark.usefixtures("helm")
def test_a_chart_that_needs_values(tmp_path: Path) -> None:
    chart(tmp_path, DEPLOYMENT.replace(".Values.image", 'required "name an image" .Values.image'), "replicas: 1\n")
    finding = only_finding(tmp_path)
    assert finding.rule.id == "chart-unrendered"
    assert "name an image" in finding.message
    write(tmp_path / "chart" / "ci" / "test-values.yaml", VALUES)
    assert ids(tmp_path) == []


@pytest.mark.slow
@pytest.mark.usefixtures("helm")
def test_a_chart_without_the_charts_that_it_depends_on(tmp_path: Path) -> None:
    chart(tmp_path, DEPLOYMENT.replace("{{ .Release.Name }}", '{{ include "common.names.fullname" . }}'))
    finding = only_finding(tmp_path)
    assert finding.rule.id == "chart-invalid"
    assert "common.names.fullname" in finding.message
    dependencies = "dependencies:\n- name: common\n  repository: oci://example.org/charts\n  version: 2.x.x\n"
    description = f"apiVersion: v2\nname: triton\nversion: 1.0.0\n{dependencies}maintainers:\n- name: A\n"
    write(tmp_path / "chart" / "Chart.yaml", description)
    finding = only_finding(tmp_path)
    assert finding.rule.id == "chart-unrendered"
    assert finding.message.endswith("lacks its dependencies common")
    assert "helm dependency build" in finding.what_to_do


def test_without_the_package_a_notice_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helm_renderer, "_LIBRARY", "no_such_package")
    monkeypatch.setenv("PATH", os.devnull)
    chart(tmp_path)
    finding = only_finding(tmp_path)
    assert finding.rule.id == "chart-unrendered"
    assert install_command("charts") in finding.what_to_do


def test_a_renderer_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "bin" / "helm", "#!/bin/sh\nexit 1\n").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    chart(tmp_path)
    assert ids(tmp_path) == ["chart-invalid"]


def test_lines_of_templates() -> None:
    template = ["a: 1", "{{ if .x }}", "  b: {{ .y }}", "c:", "  b: 3", "{{ end }}"]
    rendered = ["a: 1", "  b: 7", "c:", "  b: 3", "d: 9"]
    assert [template_line(template, rendered, number) for number in (1, 2, 3, 4, 5)] == [1, 3, 4, 5, 0]
