"""`conch autoscale doctor` on files and on a cluster's API, which a small server imitates."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conch.cli.autoscale.command import autoscale
from conch.cli.k8s.command import k8s

RATIO = "triton:queue_compute:ratio"
_PLURAL = {
    "HorizontalPodAutoscaler": "horizontalpodautoscalers",
    "Deployment": "deployments",
    "Service": "services",
    "PodMonitor": "podmonitors",
    "PrometheusRule": "prometheusrules",
}


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    file = tmp_path / "manifests.yaml"
    assert k8s(["render", "gpt2", "--set", "autoscaling.type=hpa,monitoring.enabled=true", f"--output={file}"]) == 0
    return file


@pytest.fixture
def cluster(manifests: Path) -> Iterator[str]:
    """The API of a cluster without a metrics adapter: lists of objects, without kinds as Kubernetes answers."""
    from conch.monitoring.yaml_documents import load_documents

    lists: dict[str, list[Any]] = {}
    for document in load_documents(manifests.read_text()):
        kind = document.value.pop("kind")
        document.value.pop("apiVersion")
        lists.setdefault(_PLURAL.get(kind, ""), []).append(document.value)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = lists.get(self.path.rpartition("/")[2])
            body = json.dumps({"items": found}).encode()
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_rendered_chart_is_whole(manifests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert autoscale(["doctor", str(manifests)]) == 0
    output = capsys.readouterr().out
    assert "HorizontalPodAutoscaler gpt2" in output
    assert "ok     scrape: PodMonitor 'gpt2' selects the pods" in output
    assert "broken" not in output


def test_a_cluster_without_an_adapter_is_recognized(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert autoscale(["doctor", "--api", cluster, "--json"]) == 1
    (links,) = json.loads(capsys.readouterr().out).values()
    broken = [each for each in links if each["state"] == "broken"]
    assert len(broken) == 2  # one of each metric
    for link in broken:
        assert link["link"] == "custom.metrics.k8s.io"
        assert "status 404" in link["found"]
        assert "install prometheus-adapter" in link["do"]


def test_faults_of_the_arguments_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "service.yaml").write_text("kind: Service\n")
    assert autoscale(["doctor", str(tmp_path / "service.yaml")]) == 2
    assert "no HorizontalPodAutoscaler in the files; give its manifest, or --api" in capsys.readouterr().err
    assert autoscale(["doctor", "--api", "http://127.0.0.1:9"]) == 2
    assert "is kubectl proxy running?" in capsys.readouterr().err
    assert autoscale(["doctor", str(tmp_path / "missing.yaml")]) == 2
    (tmp_path / "broken.yaml").write_text("a: [")
    assert autoscale(["doctor", str(tmp_path / "broken.yaml")]) == 2
    assert "broken.yaml:1: invalid YAML" in capsys.readouterr().err
    (tmp_path / "twice.yaml").write_text("kind: Service\nkind: HorizontalPodAutoscaler\n")
    assert autoscale(["doctor", str(tmp_path / "twice.yaml")]) == 2
    assert "twice.yaml:2: 'kind' is given twice" in capsys.readouterr().err


def test_scaled_objects_lead_to_the_autoscaler_that_keda_creates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keda.yaml"
    assert k8s(["render", "gpt2", "--set", "autoscaling.type=keda", f"--output={file}"]) == 0
    assert autoscale(["doctor", str(file)]) == 2
    assert "KEDA creates 'keda-hpa-gpt2' for the ScaledObject 'gpt2': give --api" in capsys.readouterr().err


def test_autoscalers_of_the_same_name_have_their_namespace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, namespace in (("a", "blue"), ("a", "green"), ("b", "blue")):
        file = tmp_path / f"{name}-{namespace}.yaml"
        assert k8s(["render", name, "--set=autoscaling.type=hpa", f"--namespace={namespace}", f"-o={file}"]) == 0
        files.append(str(file))
    autoscale(["doctor", "--json", *files])
    assert list(json.loads(capsys.readouterr().out)) == ["blue/a", "green/a", "b"]


def test_objects_of_unexpected_forms_are_ignored(manifests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with manifests.open("a") as file:
        file.write("---\nkind: ConfigMap\ndata: [1]\n---\n- kind: Service\n---\nkind: Service\nspec: text\n")
    assert autoscale(["doctor", str(manifests)]) == 0
    assert "broken" not in capsys.readouterr().out
