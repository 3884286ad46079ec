"""The chart: what is written from other files is up to date, and every branch of its templates is tested."""

import shutil
from pathlib import Path

import pytest
from tools import deploy_files
from tools.chart_values import ChartValues
from tools.deploy_files import CHART

from tests.support.helm_process import HelmChart, require_helm
from tests.unit.operate.deployment.refused_values import REFUSED
from tests.unit.operate.deployment.template_branches import marked_copy
from tests.unit.operate.deployment.value_sets import value_sets


def test_generated_files_are_up_to_date() -> None:
    require_helm()
    assert [str(path) for path in deploy_files.outdated()] == [], "run: make deploy-files"


def test_a_value_without_a_schema_is_named(tmp_path: Path) -> None:
    for name in ("values.yaml", "values.schema.json"):
        shutil.copy(CHART / name, tmp_path)
    values = tmp_path / "values.yaml"
    values.write_text(values.read_text().replace("  preStopSeconds:", "  preStop: 1\n  preStopSeconds:"))
    with pytest.raises(ValueError, match=r"termination: only values\.yaml or only values\.schema\.json has preStop"):
        ChartValues(tmp_path)


def test_ports_with_tls_are_asked_over_tls(chart: HelmChart) -> None:
    tls = {"secretName": "certificate", "http": True, "metrics": True}
    values = {"secrets": {"tls": tls}, "monitoring": {"enabled": True}, "service": {"metricsPort": 8002}}
    by_kind = {document["kind"]: document for document in chart.all_objects(values, "demo", "models")}
    (server,) = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {"--http-use-ssl=true", "--metrics-use-ssl=true", "--grpc-use-ssl=true"} <= set(server["args"])
    assert {server[f"{name}Probe"]["httpGet"]["scheme"] for name in ("startup", "liveness", "readiness")} == {"HTTPS"}
    ports = next(document for document in chart.objects(values, "demo", "models") if document["kind"] == "Service")
    assert {port["appProtocol"] for port in ports["spec"]["ports"]} == {"https"}
    monitor = by_kind.get("PodMonitor") or by_kind["ServiceMonitor"]
    (endpoint,) = monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]["serverName"]) == ("https", "demo.models.svc")
    assert {"name": "CONCH_HTTP_USE_SSL", "value": "true"} in by_kind["Pod"]["spec"]["containers"][0]["env"]


@pytest.mark.slow
def test_every_branch_of_the_templates_is_rendered(tmp_path: Path) -> None:
    copy = marked_copy(CHART, tmp_path / "conch")
    seen: set[str] = set()
    with HelmChart(copy.folder) as chart:
        refused = [values for values, _ in REFUSED]
        for values in (*value_sets().values(), *refused):
            seen |= copy.seen(chart.templates({**values, "global": {"branches": {}}}))
        seen |= copy.seen(chart.templates({"global": {"branches": {}}, "kubernetesVersion": "1.99"}, "7b"))
    assert len(copy.marks) > 250
    # Objects of a cluster: tests/unit/operate/deployment/test_upgrades.py has them.
    of_clusters = {mark for mark in copy.marks if mark.startswith("_autoscaling.tpl") and mark not in seen}
    assert len(of_clusters) == 6
    assert sorted(copy.marks - seen - of_clusters) == []
