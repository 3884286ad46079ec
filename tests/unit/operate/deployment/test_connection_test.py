"""The pod of `helm test`: Helm alone creates it; it asks the Service with the image's own program."""

from typing import Any

import kubernetes_validate
import pytest

from conch.clients.health import health
from tests.support.helm_process import HelmChart, is_hook

VALUES: dict[str, Any] = {
    "service": {"httpPort": 80},
    "image": {"pullSecrets": [{"name": "registry"}]},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "networkPolicy": {"enabled": True},
}


def pods(chart: HelmChart, values: dict[str, Any]) -> list[dict[str, Any]]:
    return [document for document in chart.all_objects(values, "gpt2", "models") if is_hook(document)]


def test_the_pod_asks_the_service(chart: HelmChart) -> None:
    (pod,) = pods(chart, VALUES)
    (container,) = pod["spec"]["containers"]
    by_kind = {document["kind"]: document for document in chart.objects(VALUES, "gpt2", "models")}
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    assert variables == {"CONCH_HTTP_ADDRESS": "gpt2.models.svc", "CONCH_HTTP_PORT": "80"}
    assert container["command"] == ["conch", "health", "--metadata"]
    assert health([*container["command"][2:], "--help"]) == 0
    server = by_kind["Deployment"]["spec"]["template"]["spec"]
    assert container["image"].partition(":")[0] == server["containers"][0]["image"].partition(":")[0]
    for name in ("imagePullSecrets", "securityContext", "tolerations"):
        assert pod["spec"][name] == server[name], name


def test_nothing_selects_the_pod_and_the_network_policy_admits_it(chart: HelmChart) -> None:
    (pod,) = pods(chart, VALUES)
    labels = pod["metadata"]["labels"]
    by_kind = {document["kind"]: document for document in chart.objects(VALUES, "gpt2", "models")}
    assert not by_kind["Service"]["spec"]["selector"].items() <= labels.items()
    assert not by_kind["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert by_kind["NetworkPolicy"]["spec"]["ingress"][0]["from"] == [{"podSelector": {}}]


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_accepts_the_pod(chart: HelmChart, version: str) -> None:
    (pod,) = pods(chart, VALUES)
    kubernetes_validate.validate(pod, version, strict=True)


def test_the_pod_is_optional_and_asks_for_no_metadata_that_need_a_key(chart: HelmChart) -> None:
    assert pods(chart, {"connectionTest": {"enabled": False}}) == []
    (pod,) = pods(chart, {"secrets": {"apiKeys": {"secretName": "keys"}}})
    assert pod["spec"]["containers"][0]["command"] == ["conch", "health"]
