"""`conch autoscale doctor` on files and on a cluster's API, which a strict server imitates."""

import json
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from conch.base.yaml_documents import load_documents
from conch.operate.deployment.command import k8s
from conch.operate.scaling.commands.command import autoscale
from tests.support.api_server import ApiServer
from tests.support.helm_process import require_helm
from tests.support.kubernetes_programs import kubernetes_program

METRICS = ("triton:queue_compute:ratio", "conch:instance_utilization:ratio_rate1m")


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    require_helm()
    file = tmp_path / "manifests.yaml"
    assert k8s(["render", "gpt2", "--set", "autoscaling.type=hpa,monitoring.enabled=true", f"--output={file}"]) == 0
    return file


@pytest.fixture
def cluster(manifests: Path) -> Iterator[ApiServer]:
    """A cluster without a metrics adapter."""
    with ApiServer() as api:
        add_manifests(api, manifests)
        yield api


def add_manifests(api: ApiServer, manifests: Path) -> None:
    for document in load_documents(manifests.read_text()):
        api.add(document.value)


def add_pod(api: ApiServer, name: str, *, ready: bool = True, app: str = "gpt2") -> None:
    labels = {"app": app, "app.kubernetes.io/component": "server"}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    api.add({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "status": status})


def values_of(metric: str, *pods: str) -> list[dict[str, Any]]:
    return [
        {"describedObject": {"kind": "Pod", "name": pod}, "metric": {"name": metric}, "value": "250m"} for pod in pods
    ]


def links_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, str]]:
    (links,) = json.loads(capsys.readouterr().out).values()
    return list(links)


def test_the_rendered_chart_is_whole(manifests: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert autoscale(["doctor", str(manifests)]) == 0
    output = capsys.readouterr().out
    assert "HorizontalPodAutoscaler gpt2" in output
    assert "ok     scrape: PodMonitor 'gpt2' selects the pods" in output
    assert "broken" not in output


def test_a_cluster_without_an_adapter_is_recognized(cluster: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert autoscale(["doctor", "--api", cluster.url, "--json"]) == 1
    links = links_of(capsys)
    broken = [link for link in links if link["state"] == "broken"]
    assert len(broken) == 2  # one of each metric
    for link in broken:
        assert link["link"] == "custom.metrics.k8s.io"
        assert "status 404" in link["found"]
        assert "the server could not find the requested resource" in link["found"]  # the Status of the answer
        assert "install prometheus-adapter" in link["do"]
    assert {accepted for _, _, accepted in cluster.requests} == {"application/json"}


def test_the_real_proxy_of_kubectl_is_read(
    cluster: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kubeconfig").write_text(cluster.kubeconfig())
    command = [str(kubernetes_program("kubectl")), "--kubeconfig", str(tmp_path / "kubeconfig"), "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            address = proxy.stdout.readline().split()[-1]  # Starting to serve on 127.0.0.1:1234
            assert autoscale(["doctor", "--api", f"http://{address}", "--json"]) == 1
        finally:
            proxy.terminate()
    assert "custom.metrics.k8s.io" in {link["link"] for link in links_of(capsys) if link["state"] == "broken"}


def test_an_answer_that_no_client_asked_for_is_refused(cluster: ApiServer) -> None:
    """What the real API server answers to the Accept header of Prometheus."""
    request = urllib.request.Request(f"{cluster.url}/api/v1/namespaces/default/pods", headers={"Accept": "text/plain"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value as answer:
        assert answer.code == 406
        assert json.load(answer)["reason"] == "NotAcceptable"


def test_a_pod_without_values_is_named_in_spite_of_other_releases(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["gpt2-5d9f7c8b6-aaaaa", "gpt2-5d9f7c8b6-bbbbb"]
    for pod in own:
        add_pod(cluster, pod)
    add_pod(cluster, "gpt2-5d9f7c8b6-ccccc", ready=False)
    add_pod(cluster, "llama-5d9f7c8b6-ddddd", app="llama")
    selector = {"labelSelector": "app=gpt2,app.kubernetes.io/component=server"}
    for metric in METRICS:
        path = f"custom.metrics.k8s.io/v1beta1/namespaces/default/pods/*/{metric}"
        cluster.metrics[path] = (selector, values_of(metric, *own))
    assert autoscale(["doctor", "--api", cluster.url, "--json"]) == 0
    values = [link["found"] for link in links_of(capsys) if link["link"] == "custom.metrics.k8s.io"]
    assert values == ["has values of 2 pods"] * 2
    cluster.metrics[path] = (selector, values_of(METRICS[-1], own[0]))
    assert autoscale(["doctor", "--api", cluster.url, "--json"]) == 1
    (broken,) = [link for link in links_of(capsys) if link["state"] == "broken"]
    assert broken["found"] == "has values of 1 of 2 ready pods; none of gpt2-5d9f7c8b6-bbbbb"


def test_what_the_api_server_refuses_is_shown(cluster: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.forbidden = {"podmonitors"}
    autoscale(["doctor", "--api", cluster.url, "--json"])
    assert 'User "jane" cannot list resource "podmonitors"' in capsys.readouterr().err
    cluster.forbidden = {"horizontalpodautoscalers"}
    assert autoscale(["doctor", "--api", cluster.url]) == 2
    error = capsys.readouterr().err
    assert 'status 403: horizontalpodautoscalers.autoscaling is forbidden: User "jane"' in error
    assert "kubectl proxy" not in error


@pytest.fixture
def keda(tmp_path: Path) -> Iterator[ApiServer]:
    """A cluster where KEDA has created the autoscaler of a release."""
    require_helm()
    file = tmp_path / "keda.yaml"
    assert k8s(["render", "gpt2", "--set", "autoscaling.type=keda", f"--output={file}"]) == 0
    with ApiServer() as api:
        add_manifests(api, file)
        (scaled,) = (document for document in api.objects.values() if document["kind"] == "ScaledObject")
        scaled["status"] = {"conditions": [{"type": "Ready", "status": "True", "message": "ready for scaling"}]}
        for index in range(2):
            path = f"external.metrics.k8s.io/v1beta1/namespaces/default/s{index}-prometheus"
            selector = {"labelSelector": "scaledobject.keda.sh/name=gpt2"}
            api.metrics[path] = (selector, [{"metricName": f"s{index}-prometheus", "value": "1500m"}])
        yield api


def test_a_healthy_keda_is_whole(keda: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert autoscale(["doctor", "--api", keda.url, "--name=gpt2", "--json"]) == 0
    links = {(link["link"], link["found"]) for link in links_of(capsys)}
    assert ("target", "Deployment 'gpt2' exists") in links
    created = "KEDA created this autoscaler for it, keda-hpa-gpt2"
    assert ("KEDA", f"ScaledObject 'gpt2' is ready; {created}") in links
    assert ("external metric", "has the value 1500m") in links


def test_a_target_that_keda_has_scaled_to_zero_is_whole(keda: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    (scaled,) = (document for document in keda.objects.values() if document["kind"] == "ScaledObject")
    keda.scale("gpt2", 0)
    condition = {"type": "ScalingActive", "status": "False", "reason": "ScalingDisabled", "message": "zero"}
    keda.objects["autoscaling/v2", "horizontalpodautoscalers", "keda-hpa-gpt2"]["status"] = {"conditions": [condition]}
    assert autoscale(["doctor", "--api", keda.url, "--json"]) == 1
    assert "scale the target to 1 or more" in capsys.readouterr().out
    scaled["spec"]["minReplicaCount"] = 0
    assert autoscale(["doctor", "--api", keda.url, "--json"]) == 0
    assert "0 replicas, from which KEDA scales it up" in capsys.readouterr().out


def test_faults_of_keda_are_named(keda: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    (scaled,) = (document for document in keda.objects.values() if document["kind"] == "ScaledObject")
    scaled["status"]["conditions"] = [{"type": "Ready", "status": "False", "message": "no such host"}]
    keda.metrics.clear()
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "gpt2"}
    other = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "mine"}}
    keda.add({**other, "spec": {"scaleTargetRef": target, "maxReplicas": 2}})
    assert autoscale(["doctor", "--api", keda.url, "--name=keda-hpa-gpt2", "--json"]) == 1
    broken = [(link["link"], link["found"], link["do"]) for link in links_of(capsys) if link["state"] == "broken"]
    assert len(broken) == 4
    (second, unready, external, _) = broken
    assert second[1] == (
        "HorizontalPodAutoscaler 'keda-hpa-gpt2' and HorizontalPodAutoscaler 'mine' scale Deployment 'gpt2'; each "
        "undoes what the other does"
    )
    assert second[2] == "delete the other, or this autoscaler: kubectl delete scaledobject gpt2"
    assert unready[1] == "ScaledObject 'gpt2' is not ready: no such host"
    assert external[0] == "external metric"
    assert "logs --namespace keda deployment/keda-operator" in external[2]
    # From the other side, the ScaledObject is the second autoscaler, once.
    assert autoscale(["doctor", "--api", keda.url, "--name=mine", "--json"]) == 1
    (second,) = [link["found"] for link in links_of(capsys) if "each undoes" in link["found"]]
    assert "and ScaledObject 'gpt2' scale Deployment" in second


def test_an_autoscaler_that_keda_has_not_created_is_missing(
    keda: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    del keda.objects["autoscaling/v2", "horizontalpodautoscalers", "keda-hpa-gpt2"]
    assert autoscale(["doctor", "--api", keda.url]) == 2
    assert "KEDA has not created 'keda-hpa-gpt2' for the ScaledObject 'gpt2'" in capsys.readouterr().err
    assert autoscale(["doctor", "--api", keda.url, "--namespace=other"]) == 2
    assert "in the namespace 'other'; give its manifest, or another --namespace" in capsys.readouterr().err


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
    require_helm()
    file = tmp_path / "keda.yaml"
    assert k8s(["render", "gpt2", "--set", "autoscaling.type=keda", f"--output={file}"]) == 0
    assert autoscale(["doctor", str(file)]) == 2
    assert "KEDA creates 'keda-hpa-gpt2' for the ScaledObject 'gpt2': give --api" in capsys.readouterr().err


def test_autoscalers_of_the_same_name_have_their_namespace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_helm()
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


def test_prometheus_is_asked_for_the_pods_of_the_autoscaler(
    manifests: Path, keda: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    sample = {"metric": {"namespace": "default", "pod": "gpt2-5d9f7c8b6-aaaaa"}, "value": [0, "1"]}

    class Prometheus(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(parse_qs(urlsplit(self.path).query)["query"][0])
            body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": [sample]}}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Prometheus)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        assert autoscale(["doctor", str(manifests), "--prometheus", url]) == 0
        assert asked == [f'{{__name__="{metric}",namespace=~"default|"}}' for metric in METRICS]
        asked.clear()
        # Of KEDA's autoscaler, the queries of the triggers.
        assert autoscale(["doctor", "--api", keda.url, "--prometheus", url]) == 0
        matchers = 'namespace="default",job="gpt2"'
        assert asked == [f"sum(max by (pod) ({metric}{{{matchers}}}))" for metric in METRICS]
        assert "Prometheus: answers the trigger's query" in capsys.readouterr().out
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
