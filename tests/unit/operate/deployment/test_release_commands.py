"""The commands of a release as people type them: installation with other charts' values, notes, lint, package."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from tools.deploy_files import CHART

from conch import __version__
from tests.support.helm_process import HelmChart, by_name
from tests.support.packages import require

_HELM = """
import json, sys, helm_python
chart, folder, values = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
lint = [helm_python.lint(chart, chosen, strict=True) for chosen in values]
archive = helm_python.package(chart, destination=folder)
with helm_python.Chart.load(archive) as loaded:
    print(json.dumps({"lint": lint, "version": loaded.version, "objects": loaded.render({}, name="gpt2")}))
"""


def merged(lower: dict[str, object], upper: dict[str, object]) -> dict[str, object]:
    values = dict(lower)
    for key, value in upper.items():
        below = values.get(key)
        values[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return values


def ports(service: dict[str, Any]) -> list[int]:
    return [port["port"] for port in service["spec"]["ports"]]


def test_install_with_the_values_of_nvidias_autoscaling_chart(chart: HelmChart) -> None:
    """helm install gpt2 --values values.yaml --values gpt2_values.yaml --set 'triton.image.name=…' ./chart/. ."""
    files = [yaml.safe_load((CHART / name).read_text()) for name in ("values.yaml", "gpt2_values.yaml")]
    values = merged(merged(files[0], files[1]), {"triton": {"image": {"name": "registry.example.com/mine:3"}}})
    objects = by_name(chart.objects(values, "gpt2"))

    # kubectl get deployments,pods,hpa,services,podmonitors --selector='app=gpt2'
    for kind in ("Deployment", "HorizontalPodAutoscaler", "Service", "PodMonitor"):
        assert objects[kind, "gpt2"]["metadata"]["labels"]["app"] == "gpt2"
    pod = objects["Deployment", "gpt2"]["spec"]["template"]
    assert pod["metadata"]["labels"]["app"] == "gpt2"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "ngc-container-pull"}]
    [server] = pod["spec"]["containers"]
    assert server["image"] == "registry.example.com/mine:3"
    assert "--load-model=gpt2" in server["args"]
    assert server["resources"]["limits"]["nvidia.com/gpu"] == 1
    [term] = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term == {
        "matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-A10G"]}]
    }
    assert ports(objects["Service", "gpt2"]) == [8000, 8001, 8002]


def test_two_language_models_have_the_names_and_ports_of_the_blueprint(chart: HelmChart) -> None:
    """kubectl get all -n triton-vllm."""
    values = yaml.safe_load((CHART / "examples" / "two-language-models.yaml").read_text())
    name = "nvidia-triton-server-triton-inference-server"
    objects = by_name(chart.objects(values, name, "triton-vllm"))
    assert ports(objects["Service", name]) == [8000, 8001, 8002]
    assert ports(objects["Service", f"{name}-metrics"]) == [8080]
    autoscaler = objects["HorizontalPodAutoscaler", name]["spec"]
    assert (autoscaler["minReplicas"], autoscaler["maxReplicas"]) == (1, 5)
    assert objects["Deployment", name]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": 6,
        "memory": "25Gi",
        "nvidia.com/gpu": 4,
    }


def test_metrics_have_a_separate_service_by_default(chart: HelmChart) -> None:
    objects = by_name(chart.objects({}))
    assert (ports(objects["Service", "gpt2"]), ports(objects["Service", "gpt2-metrics"])) == ([8000, 8001], [8002])


def test_two_gpus_for_two_fold_tensor_parallelism(chart: HelmChart) -> None:
    values = {"model": {"tensorrtLlm": {"parallelism": {"tensor": 2}}}}
    [server] = by_name(chart.objects(values))["Deployment", "gpt2"]["spec"]["template"]["spec"]["containers"]
    assert server["resources"]["limits"] == {"nvidia.com/gpu": 2}


def test_services_select_the_pods_and_monitors_the_services(chart: HelmChart) -> None:
    objects = by_name(chart.objects({"monitoring": {"enabled": True, "monitor": "ServiceMonitor"}}))
    pod = objects["Deployment", "gpt2"]["spec"]["template"]
    for name in ("gpt2", "gpt2-metrics"):
        assert objects["Service", name]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    wanted = objects["ServiceMonitor", "gpt2"]["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= objects["Service", "gpt2-metrics"]["metadata"]["labels"].items()
    assert not wanted.items() <= objects["Service", "gpt2"]["metadata"]["labels"].items()
    named = {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}
    assert named == {"http", "grpc", "metrics"}


def test_notes_name_the_objects_and_the_next_commands(chart: HelmChart) -> None:
    notes = chart.templates({}, "gpt2", "models")["conch/templates/NOTES.txt"]
    for line in ("Release Name: gpt2", "Namespace: models", "Deployment Name: gpt2", "Service Name: gpt2"):
        assert f"  {line}\n" in notes
    assert "kubectl rollout status deployment/gpt2 --namespace models" in notes
    assert "port-forward service/gpt2 8000:8000" in notes


def test_lint_and_package(tmp_path: Path) -> None:
    require("helm_python")
    values = json.dumps([yaml.safe_load(path.read_text()) for path in sorted(CHART.glob("examples/*.yaml"))])
    done = subprocess.run(
        [sys.executable, "-c", _HELM, str(CHART), str(tmp_path), values], capture_output=True, text=True, check=True
    )
    made = json.loads(done.stdout)
    assert [message for report in made["lint"] for message in report["messages"] if message["severity"] > 1] == []
    assert made["version"] == __version__
    assert "conch/templates/workload.yaml" in made["objects"]
