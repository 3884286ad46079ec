"""The manifests of docs/oci-models.md: valid, and the Deployment with the init container runs in podman."""

import os
import subprocess
import sys
import urllib.request
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from conch.server.repository.remote.oci.manifest import this_platform
from tests.docs.blocks import ROOT, blocks_of
from tests.server.remote.test_http_archive import tarred
from tests.server.remote.test_model_image_serving import wait_for
from tests.server.remote.test_model_images import call, containers, installed, pack, push_index
from tests.support.models import write_identity
from tests.support.ports import free_port

__all__ = ["containers"]


def manifests() -> dict[str, dict[str, Any]]:
    """The manifests of the page by kind."""
    blocks = blocks_of(ROOT / "docs" / "oci-models.md")
    documents = [yaml.safe_load("\n".join(block.lines)) for block in blocks if block.language == "yaml"]
    return {document["kind"]: document for document in documents}


@pytest.mark.parametrize("version", ["1.33", "1.37"])
def test_manifests_are_valid(version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for kind in ("Deployment", "Pod"):
        kubernetes_validate.validate(manifests()[kind], version, strict=True)


def test_the_deployment_runs_in_podman(registry: str, tmp_path: Path, containers: list[str]) -> None:
    """The server's image is an empty one with this machine's Python; everything else is what the page has."""
    podman, runc = installed("podman"), installed("runc")
    name = f"{registry}/kube/models"
    write_identity(tmp_path / "source", "a")
    pack(tmp_path / "source", f"{name}:1")
    push_index(f"{name}/python", {this_platform(): tarred({"tmp/.keep": b""}, "w")})
    call(podman, *containers, "pull", "-q", "--tls-verify=false", f"{name}/python:1")
    ports = {kind: free_port() for kind in ("http", "grpc", "metrics")}
    kube, settings = tmp_path / "kube.yaml", tmp_path / "containers.conf"
    kube.write_text(yaml.safe_dump(on_this_machine(manifests()["Deployment"], name, ports)))
    # Other limits, because a machine may not permit podman's.
    settings.write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]\n'
        f'[engine]\nruntime = "runc"\n[engine.runtimes]\nrunc = ["{runc}"]\n'
    )
    environment = {**os.environ, "CONTAINERS_CONF": str(settings)}

    def play(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [podman, *containers, "play", "kube", *flags, str(kube)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    try:
        done = play()
        if "ermission denied" in done.stderr or "not supported" in done.stderr:
            pytest.skip(f"podman may not start pods here: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr
        wait_for(lambda: answers(f"http://127.0.0.1:{ports['http']}/v2/models/a/ready"))
    finally:
        play("--down")


def on_this_machine(deployment: dict[str, Any], name: str, ports: dict[str, int]) -> dict[str, Any]:
    """The Deployment with another image, and with what it lacks from this machine, as root, who owns that."""
    changed = deepcopy(deployment)
    changed["metadata"]["name"] = "conch-model-images-test"
    pod = changed["spec"]["template"]["spec"]
    # podman restarts init containers, too, and has neither fsGroup nor Secrets without a store for them.
    pod |= {"hostNetwork": True, "restartPolicy": "OnFailure", "securityContext": {}}
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] == "models"]
    init, server = pod["initContainers"][0], pod["containers"][0]
    words = [word.replace("registry.example.com/team/models", name) for word in init["command"][1:]]
    init["command"] = [sys.executable, "-m", "conch", *words]
    init["securityContext"] |= {"runAsUser": 0, "runAsNonRoot": False}
    flags = [f"--{kind}-port={port}" for kind, port in ports.items()]
    server["command"] = [sys.executable, "-m", "conch", *server.pop("args"), *flags]
    for field in ("ports", "readinessProbe"):
        server.pop(field)
    shared = [str(folder) for folder in ("/usr", "/lib", "/lib64", ROOT, sys.base_prefix) if Path(folder).exists()]
    mounts = [{"name": f"machine{number}", "mountPath": path} for number, path in enumerate(shared)]
    pod["volumes"] += [{"name": mount["name"], "hostPath": {"path": mount["mountPath"]}} for mount in mounts]
    for container in (init, server):
        container["image"] = f"{name}/python:1"
        models = [volumemount for volumemount in container["volumeMounts"] if volumemount["name"] == "models"]
        container["volumeMounts"] = [*models, *mounts]
    return changed


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=60).close()
    except OSError:
        return False
    return True
