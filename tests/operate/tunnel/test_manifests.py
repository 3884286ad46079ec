"""The objects for Kubernetes: their selectors match, and the API server's schemas accept them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from conch.operate.tunnel.command import tunnel
from conch.operate.tunnel.manifests import ScrapedTunnel, manifests

# What a widely copied tutorial has: no label on the Service for the ServiceMonitor to select.
LABELLESS = """
apiVersion: v1
kind: Service
metadata: {name: gpu-dcgm-exporter, namespace: monitoring}
spec: {clusterIP: None, ports: [{port: 9400, name: metrics, protocol: TCP}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: gpu-dcgm-exporter, namespace: monitoring}
subsets: [{addresses: [{ip: 10.0.24.31}], ports: [{port: 9400, name: metrics}]}]
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: gpu-dcgm-exporter, namespace: monitoring, labels: {release: kps}}
spec: {selector: {matchLabels: {app: gpu-dcgm-exporter}}, endpoints: [{port: metrics, interval: 15s}]}
"""


def scraped(**changes: Any) -> ScrapedTunnel:
    return ScrapedTunnel(**{"name": "gpu1", "addresses": ("10.0.24.31",), "port": 9400, **changes})


def targets(objects: list[dict[str, Any]]) -> list[str]:
    """Return the addresses that Prometheus scrapes, as its operator and its discovery select them."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for item in objects:
        kinds.setdefault(item["kind"], []).append(item)
    addresses = []
    for monitor in kinds["ServiceMonitor"]:
        spec, namespace = monitor["spec"], monitor["metadata"]["namespace"]
        namespaces = spec.get("namespaceSelector", {}).get("matchNames", [namespace])
        sliced = spec.get("serviceDiscoveryRole", "Endpoints") == "EndpointSlice"
        for service in kinds["Service"]:
            meta = service["metadata"]
            labels = meta.get("labels", {})
            wanted = spec["selector"]["matchLabels"].items()
            if meta["namespace"] not in namespaces or not wanted <= labels.items():
                continue
            ports = {port["name"] for port in service["spec"]["ports"]}
            assert all(endpoint["port"] in ports for endpoint in spec["endpoints"])
            addresses += _sliced(kinds, meta, spec) if sliced else _listed(kinds, meta, spec)
    return addresses


def _sliced(kinds: dict[str, list[Any]], service: dict[str, Any], spec: dict[str, Any]) -> list[str]:
    return [
        f"{address}:{port['port']}"
        for backing in kinds.get("EndpointSlice", [])
        if backing["metadata"]["labels"]["kubernetes.io/service-name"] == service["name"]
        and backing["metadata"]["namespace"] == service["namespace"]
        for endpoint in backing["endpoints"]
        for address in endpoint["addresses"]
        for port in backing["ports"]
        if port["name"] in {endpoint["port"] for endpoint in spec["endpoints"]}
    ]


def _listed(kinds: dict[str, list[Any]], service: dict[str, Any], spec: dict[str, Any]) -> list[str]:
    return [
        f"{address['ip']}:{port['port']}"
        for backing in kinds.get("Endpoints", [])
        if (backing["metadata"]["name"], backing["metadata"]["namespace"]) == (service["name"], service["namespace"])
        for subset in backing["subsets"]
        for address in subset["addresses"]
        for port in subset["ports"]
        if port["name"] in {endpoint["port"] for endpoint in spec["endpoints"]}
    ]


@pytest.mark.parametrize("discovery", ["endpointslice", "endpoints"])
def test_prometheus_finds_the_tunnel(discovery: str) -> None:
    scrapes = targets(manifests(scraped(discovery=discovery, addresses=("10.0.24.31", "fd00::31"))))
    assert sorted(scrapes) == ["10.0.24.31:9400", "fd00::31:9400"]


def test_the_check_finds_the_mistake_of_the_tutorial() -> None:
    assert targets(list(yaml.safe_load_all(LABELLESS))) == []


def test_labels_for_the_operator_are_on_the_monitor() -> None:
    monitor = manifests(scraped(monitor_labels={"release": "kps"}))[-1]
    assert monitor["metadata"]["labels"]["release"] == "kps"
    assert "release" not in monitor["spec"]["selector"]["matchLabels"]


@pytest.mark.parametrize("discovery", ["endpointslice", "endpoints"])
@pytest.mark.parametrize("addresses", [("10.0.24.31",), ("fd00::31",), ("10.0.24.31", "10.0.24.32", "fd00::31")])
def test_kubernetes_accepts_the_objects(discovery: str, addresses: tuple[str, ...]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for item in manifests(scraped(discovery=discovery, addresses=addresses)):
        if item["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "169.254.0.7", "0.0.0.0", "gpu1.example.com"])
def test_addresses_that_kubernetes_rejects_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match=address.replace(".", r"\.")):
        manifests(scraped(addresses=(address,)))


def test_the_command_writes_the_objects(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["manifests", "gpu1", "--address=10.0.24.31", "--port=9400", "--monitor-label=release=kps"]
    assert tunnel(arguments) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == manifests(scraped(monitor_labels={"release": "kps"}))
    with pytest.raises(SystemExit) as ended:
        tunnel(["manifests", "gpu1", "--address=127.0.0.1", "--port=9400"])
    assert ended.value.code == 2
    assert "--allow-remote-bind" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "missing" / "tunnel.yaml"
    assert tunnel(["manifests", "gpu", "--address", "10.0.0.1", "--port", "9400", "--output", str(path)]) == 1
    assert capsys.readouterr().err == f"conch tunnel manifests: cannot write {path}: No such file or directory\n"


@pytest.mark.parametrize("interval", ["5", "0", "0s", "", "5 s", "1s1m", "1.5s", "s"])
def test_an_interval_without_a_unit_is_refused(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        tunnel(["manifests", "gpu1", "--address=10.0.24.31", "--port=9400", f"--interval={interval}"])
    assert stopped.value.code == 2
    assert f"'{interval}' is not a valid duration: a number with a unit, such as 15s" in capsys.readouterr().err


@pytest.mark.parametrize("interval", ["5s", "1m30s", "500ms"])
def test_an_interval_is_taken_as_it_is(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tunnel(["manifests", "gpu1", "--address=10.0.24.31", "--port=9400", f"--interval={interval}"]) == 0
    assert f"interval: {interval}\n" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["manifest", "manifets", "Manifests"])
def test_a_misspelt_command_is_not_a_host(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        tunnel([word, "gpu1", "--address", "10.0.24.31", "--port", "9400"])
    assert stopped.value.code == 2
    assert f"unknown command '{word}'; did you mean 'manifests'?" in capsys.readouterr().err
