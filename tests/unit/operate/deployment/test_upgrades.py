"""Upgrades by real Helm against a strict API server: autoscalers replace each other, and replicas stay."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.deploy_files import CHART

from conch.operate.deployment.command import k8s
from tests.support.api_server import ApiServer
from tests.support.helm_process import require_helm
from tests.support.kubernetes_programs import kubernetes_program

pytestmark = pytest.mark.slow

_HPAS = ("autoscaling/v2", "horizontalpodautoscalers")


class Release:
    """The release `demo` of the chart in a cluster."""

    def __init__(self, api: ApiServer, folder: Path) -> None:
        self.api = api
        self._config = folder / "kubeconfig"
        self._config.write_text(api.kubeconfig())
        self._environment = {"HOME": str(folder), "KUBECONFIG": str(self._config), "PATH": "/usr/bin:/bin"}

    def run(self, program: str, *arguments: str, **environment: object) -> subprocess.CompletedProcess[str]:
        command = [str(kubernetes_program(program)), *arguments]
        variables = {**self._environment, **{name: str(value) for name, value in environment.items()}}
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)

    def upgrade(self, values: str, *arguments: str, refused: bool = False, chart: Path = CHART) -> str:
        """Install or upgrade; return the error."""
        flags = ["--install", "--disable-openapi-validation", f"--set={values}", *arguments]
        done = self.run("helm", "upgrade", "demo", str(chart), *flags)
        assert bool(done.returncode) == refused, done.stderr
        return done.stderr

    @property
    def autoscalers(self) -> list[str]:
        return self.api.names(*_HPAS)

    @property
    def replicas(self) -> int:
        return self.api.replicas("demo")


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Release]:
    with ApiServer() as api:
        yield Release(api, tmp_path)


# Helm 4 applies on the server by default; without it, as Helm 3 does, it sends patches of what changed.
@pytest.mark.parametrize("how", ["--server-side=true", "--server-side=false"])
def test_replicas_stay_when_an_autoscaler_takes_over(release: Release, how: str) -> None:
    release.upgrade("replicaCount=3", how)
    assert release.replicas == 3
    release.upgrade("autoscaling.type=hpa", how)
    assert (release.replicas, release.autoscalers) == (3, ["demo"])
    # Neither the next upgrade nor one after the autoscaler's decisions changes them.
    release.upgrade("autoscaling.type=hpa,autoscaling.maxReplicas=8", how)
    assert release.replicas == 3
    release.api.scale("demo", 6)
    release.upgrade("autoscaling.type=hpa,autoscaling.maxReplicas=9", how)
    assert release.replicas == 6
    if how == "--server-side=true":
        # From the change by the autoscaler on the number is its alone.
        release.api.scale("demo", 7)
        release.upgrade("autoscaling.type=hpa", how)
        assert release.run("helm", "rollback", "demo", "4").returncode == 0
        assert release.replicas == 7
        # Back to a number of replicas, which the controller of the autoscaler set last.
        error = release.upgrade("replicaCount=2", refused=True)
        assert 'conflict with "kube-controller-manager" with subresource "scale" using apps/v1' in error
        assert ": .spec.replicas" in error
        how = "--force-conflicts"
    release.upgrade("replicaCount=2", how)
    assert (release.replicas, release.autoscalers) == (2, [])


@pytest.mark.parametrize("how", ["--server-side=true", "--server-side=false"])
def test_a_release_that_always_had_an_autoscaler_never_sets_replicas(release: Release, how: str) -> None:
    release.upgrade("autoscaling.type=hpa", how)
    release.api.scale("demo", 4)
    release.upgrade("autoscaling.type=hpa,autoscaling.maxReplicas=8", how)
    release.api.scale("demo", 7)
    assert release.run("helm", "rollback", "demo", "1", how).returncode == 0
    assert release.replicas == 7
    manifest = release.run("helm", "get", "manifest", "demo").stdout
    assert "  replicas:" not in manifest


@pytest.mark.parametrize("how", ["--server-side=true", "--server-side=false"])
def test_autoscalers_replace_each_other_in_both_directions(release: Release, how: str) -> None:
    release.upgrade("autoscaling.type=hpa", how)
    release.api.scale("demo", 4)
    release.upgrade("autoscaling.type=keda", how)
    assert release.autoscalers == ["keda-hpa-demo"]
    release.upgrade("autoscaling.type=hpa", how)
    assert release.autoscalers == ["demo"]
    assert release.api.names("keda.sh/v1alpha1", "scaledobjects") == []
    assert release.run("helm", "rollback", "demo", "2", how).returncode == 0
    assert release.autoscalers == ["keda-hpa-demo"]
    assert release.run("helm", "rollback", "demo", "1", how).returncode == 0
    assert release.autoscalers == ["demo"]
    assert release.replicas == 4


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A chart whose HorizontalPodAutoscaler has no annotation, and the name of KEDA's."""
    folder = tmp_path / "older"
    shutil.copytree(CHART, folder)
    for name, new, old in (
        ("hpa.yaml", "$.Values.monitoring.labels $replaceable", "$.Values.monitoring.labels dict"),
        ("scaled-object.yaml", "      behavior:\n", "      name: {{ $.Release.Name | quote }}\n      behavior:\n"),
    ):
        path = folder / "templates" / name
        text = path.read_text()
        assert new in text
        path.write_text(text.replace(new, old))
    return folder


def test_an_autoscaler_of_an_older_chart_is_replaced_after_one_annotation(release: Release, older: Path) -> None:
    """docs/kubernetes.md has the command."""
    release.upgrade("autoscaling.type=hpa", chart=older)
    error = release.upgrade("autoscaling.type=keda", refused=True)
    assert "already managed by the hpa 'demo'" in error
    annotation = "validations.keda.sh/hpa-ownership=false"
    assert release.run("kubectl", "annotate", "hpa", "demo", annotation).returncode == 0
    release.upgrade("autoscaling.type=keda")
    assert release.autoscalers == ["keda-hpa-demo"]


@pytest.mark.parametrize("how", ["--server-side=true", "--server-side=false"])
def test_keda_of_an_older_chart_is_replaced_after_an_upgrade_of_the_chart(
    release: Release, older: Path, how: str
) -> None:
    """docs/kubernetes.md has the commands. Without the first, the autoscaler is lost, or Helm 4 refuses."""
    release.upgrade("autoscaling.type=keda", how, chart=older)
    assert release.autoscalers == ["demo"]
    release.upgrade("autoscaling.type=keda", how, "--reset-then-reuse-values")
    assert release.autoscalers == ["keda-hpa-demo"]
    release.upgrade("autoscaling.type=hpa", how)
    assert release.autoscalers == ["demo"]


def test_autoscalers_of_one_name_lose_each_other(release: Release, older: Path) -> None:
    """What the real cluster showed: the reason for the names."""
    release.upgrade("autoscaling.type=keda", chart=older)
    error = release.upgrade("autoscaling.type=hpa", refused=True, chart=older)
    assert 'conflict with "keda" using autoscaling/v2' in error
    assert ": .spec.metrics" in error
    release.upgrade("autoscaling.type=hpa", "--server-side=false", chart=older)
    assert release.autoscalers == []


def test_replicas_stay_with_manifests_after_the_command_of_the_page(release: Release, tmp_path: Path) -> None:
    """What `kubectl apply` of rendered manifests does: docs/kubernetes.md has the command."""
    require_helm()
    file = tmp_path / "demo.yaml"
    apply = ("apply", "--validate=false", f"--filename={file}")
    for settings in ("replicaCount=3", "autoscaling.type=hpa"):
        assert k8s(["render", "demo", f"--set={settings}", f"--output={file}"]) == 0
        if settings != "replicaCount=3":
            (tmp_path / "editor").write_text("#!/bin/sh\nsed -i '/^  replicas:/d' \"$1\"\n")
            (tmp_path / "editor").chmod(0o755)
            done = release.run(
                "kubectl",
                "apply",
                "edit-last-applied",
                "--validate=false",
                "deployment/demo",
                EDITOR=tmp_path / "editor",
            )
            assert done.returncode == 0, done.stderr
        done = release.run("kubectl", *apply)
        assert done.returncode == 0, done.stderr
        assert release.replicas == 3


def test_limits_of_values_and_of_kubectl(release: Release) -> None:
    """A limit has one owner: the values, or kubectl with a chart that only reads limits."""
    release.upgrade("server.limitsKubernetes=true")
    assert release.run("kubectl", "annotate", "deployment", "demo", "max_qps=80", "--overwrite").returncode == 0
    release.upgrade("server.limitsKubernetes=true,replicaCount=2")
    deployment = release.api.objects["apps/v1", "deployments", "demo"]
    assert deployment["metadata"]["annotations"]["max_qps"] == "80"
    error = release.upgrade("limits.maxQps=40", refused=True)
    assert 'conflict with "kubectl-annotate"' in error
    release.upgrade("limits.maxQps=40", "--force-conflicts")
    deployment = release.api.objects["apps/v1", "deployments", "demo"]
    assert deployment["metadata"]["annotations"]["max_qps"] == "40"


def test_the_api_server_answers_as_the_real_one(release: Release) -> None:
    release.upgrade("autoscaling.type=hpa")
    listed = release.run("kubectl", "get", "hpa", "--selector=app=demo", "--output=json")
    assert [item["metadata"]["name"] for item in json.loads(listed.stdout)["items"]] == ["demo"]
    missing = release.run("kubectl", "get", "hpa", "other")
    assert missing.stderr == 'Error from server (NotFound): horizontalpodautoscalers "other" not found\n'
    assert release.run("helm", "uninstall", "demo").returncode == 0
    assert release.autoscalers == []
