"""What the containers run are command lines that the server and `conch repo pull` accept."""

from pathlib import Path
from typing import Any

import pytest

from conch.clients.repository.command import repo_parser
from conch.server.options.parser import parse
from tests.support.helm_process import HelmChart
from tests.unit.operate.deployment.value_sets import value_sets

VALUE_SETS = value_sets()


def pod_of(chart: HelmChart, values: dict[str, Any]) -> dict[str, Any]:
    [workload] = [
        document
        for document in chart.objects(values, "gpt2", "models")
        if document["kind"] in ("Deployment", "StatefulSet")
    ]
    pod: dict[str, Any] = workload["spec"]["template"]["spec"]
    return pod


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files that a pod mounts."""
    for name in ("api-keys/keys", "tls/tls.crt", "tls/tls.key", "tls/ca.crt", "verify-key/cosign.pub"):
        path = tmp_path / "etc" / "conch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("models", "opt/models"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_the_server_accepts_its_arguments(chart: HelmChart, root: Path) -> None:
    for name, values in VALUE_SETS.items():
        pod = pod_of(chart, values)
        [server] = [container for container in pod["containers"] if container["name"] == "server"]
        command, *flags = server["args"]
        assert command == "serve"
        options = parse([flag.replace("=/", f"={root}/") for flag in flags], {})
        assert not options.notices, name
        assert pod["terminationGracePeriodSeconds"] > options.exit_timeout_secs
        assert options.http_port == 8000
        for secret in ("sk-", "token=", "password="):
            assert not any(secret in flag for flag in flags), name


def test_the_init_container_is_a_command_of_conch(chart: HelmChart) -> None:
    commands = [
        container["command"]
        for values in VALUE_SETS.values()
        for container in pod_of(chart, values).get("initContainers", [])
        if container["name"] == "models"
    ]
    assert commands
    for program, group, *arguments in commands:
        assert (program, group) == ("conch", "repo")
        given = repo_parser().parse_args(arguments)
        assert given.sync
        assert given.path.startswith("/")


def test_every_mount_has_a_volume_and_every_volume_a_mount(chart: HelmChart) -> None:
    for name, values in VALUE_SETS.items():
        pod = pod_of(chart, values)
        containers = [*pod["containers"], *pod.get("initContainers", [])]
        mounted = {mount["name"] for container in containers for mount in container.get("volumeMounts", [])}
        volumes = {volume["name"] for volume in pod["volumes"]}
        claims = {"cache"} if "cache" not in volumes else set()
        assert mounted == volumes | claims, name


def test_the_containers_are_confined_by_default(chart: HelmChart) -> None:
    pod = pod_of(chart, {"modelRepository": {"pull": "registry.example.com/models:1"}})
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in (*pod["containers"], *pod["initContainers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    [memory] = [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shared-memory"]
    assert memory == {"medium": "Memory", "sizeLimit": "1Gi"}
