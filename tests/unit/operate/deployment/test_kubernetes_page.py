"""docs/kubernetes.md and deploy/kustomize: what they refer to is in the objects that the page's command renders."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tools.deploy_files import ROOT

from conch.operate.deployment.command import k8s
from tests.docs.blocks import Block, blocks_of
from tests.support.helm_process import require_helm
from tests.support.kubernetes_programs import kubernetes_program

KUSTOMIZE = ROOT / "deploy" / "kustomize"
# Fields of a kustomization that the example uses, of those of kustomize.config.k8s.io/v1beta1.
FIELDS = {"apiVersion", "kind", "resources", "replicas", "images"}


def blocks() -> list[Block]:
    return blocks_of(ROOT / "docs" / "kubernetes.md")


def kustomization(folder: Path) -> dict[str, Any]:
    document = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    assert set(document) <= FIELDS
    assert isinstance(document, dict)
    return document


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the page's command writes, in a copy of the folders."""
    require_helm()
    commands = [command.text for block in blocks() if block.language == "console" for command in block.commands()]
    (command,) = (shown for shown in commands if shown.startswith("conch k8s render") and "kustomize" in shown)
    *words, output = shlex.split(command)[2:]
    path = tmp_path_factory.mktemp("kustomize") / output
    path.parent.mkdir(parents=True)
    assert k8s([*words, str(path)]) == 0
    return path


def objects(rendered: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(rendered.read_text()))


def test_the_base_is_the_rendered_file_and_the_overlay_leads_to_the_base(rendered: Path) -> None:
    assert rendered.parts[-4:-1] == ("deploy", "kustomize", "base")
    assert kustomization(KUSTOMIZE / "base")["resources"] == [rendered.name]
    overlay = KUSTOMIZE / "overlays" / "production"
    assert [(overlay / resource).resolve() for resource in kustomization(overlay)["resources"]] == [KUSTOMIZE / "base"]


def test_the_overlay_names_a_workload_and_the_image_of_all_its_containers(rendered: Path) -> None:
    overlay = kustomization(KUSTOMIZE / "overlays" / "production")
    workloads = {
        document["metadata"]["name"]: document for document in objects(rendered) if document["kind"] == "Deployment"
    }
    (replicas,), (image,) = overlay["replicas"], overlay["images"]
    assert replicas["count"] > workloads[replicas["name"]]["spec"]["replicas"]
    pod = workloads[replicas["name"]]["spec"]["template"]["spec"]
    images = {
        container["image"].rpartition(":")[0] for container in [*pod["containers"], *pod.get("initContainers", ())]
    }
    assert images == {image["name"]}
    assert re.fullmatch("sha256:[0-9a-f]{64}", image["digest"])


def test_kubectl_builds_the_overlay(rendered: Path, tmp_path: Path) -> None:
    shutil.copytree(KUSTOMIZE, tmp_path / "kustomize")
    shutil.copy(rendered, tmp_path / "kustomize" / "base")
    command = [kubernetes_program("kubectl"), "kustomize", tmp_path / "kustomize" / "overlays" / "production"]
    built = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    by_name = {
        (document["kind"], document["metadata"]["name"]): document for document in yaml.safe_load_all(built.stdout)
    }
    assert by_name.keys() == {(document["kind"], document["metadata"]["name"]) for document in objects(rendered)}
    spec = by_name["Deployment", "demo"]["spec"]
    assert spec["replicas"] == 3
    assert spec["template"]["spec"]["containers"][0]["image"].partition("@")[2].startswith("sha256:")


def test_the_ingress_leads_to_the_service(rendered: Path) -> None:
    texts = ["\n".join(block.lines) for block in blocks() if block.language == "yaml"]
    (ingress,) = (document for document in map(yaml.safe_load, texts) if document.get("kind") == "Ingress")
    kubernetes_validate.validate(ingress, "1.33", strict=True)
    (rule,), (tls,) = ingress["spec"]["rules"], ingress["spec"]["tls"]
    assert tls["hosts"] == [rule["host"]]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    services = {
        document["metadata"]["name"]: document["spec"]
        for document in objects(rendered)
        if document["kind"] == "Service"
    }
    assert services[backend["name"]]["type"] == "ClusterIP"
    assert backend["port"]["name"] in {port["name"] for port in services[backend["name"]]["ports"]}
