"""`conch k8s render`."""

import os
from pathlib import Path

import pytest
import yaml
from tools.deploy_files import CHART

from conch.operate.deployment.command import k8s
from tests.support.helm_process import HelmChart, by_name, require_helm
from tests.support.kubernetes_programs import kubernetes_program


def test_it_writes_what_the_chart_creates(tmp_path: Path) -> None:
    require_helm()
    output = tmp_path / "gpt2.yaml"
    chosen = ["-f", str(CHART / "gpt2_values.yaml"), "--set", "triton.image.name=<your custom image>"]
    assert k8s(["render", "gpt2", *chosen, "--set-string", "image.tag=24", "-n", "models", "-o", str(output)]) == 0
    written = by_name([document for document in yaml.safe_load_all(output.read_text()) if document])
    values = yaml.safe_load((CHART / "gpt2_values.yaml").read_text())
    values["triton"]["image"]["name"] = "<your custom image>"
    with HelmChart(CHART) as chart:
        created = by_name(chart.objects(values, "gpt2", "models"))
    assert written == created


def test_defaults_go_to_the_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    require_helm()
    assert k8s(["render", "demo"]) == 0
    text = capsys.readouterr().out
    kinds = [document["kind"] for document in yaml.safe_load_all(text)]
    assert kinds[:4] == ["ServiceAccount", "Service", "Service", "Deployment"]
    assert len(list(yaml.safe_load_all(text + text))) == 2 * len(kinds)  # cat of two releases


def test_the_program_and_the_package_of_helm_write_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require_helm()
    written = []
    # No release of Kubernetes is newer than what the values say: without a cluster, nothing else knows.
    command = ["render", "demo", "--set=monitoring.enabled=true,autoscaling.type=keda", "--set-string=image.tag=24"]
    for path in (str(kubernetes_program("helm").parent), os.devnull):
        monkeypatch.setenv("PATH", path)
        assert k8s(command) == 0
        written.append(capsys.readouterr().out)
    assert written[0] == written[1]
    monkeypatch.setenv("PATH", str(kubernetes_program("helm").parent))
    assert k8s([*command, "--set=kubernetesVersion=1.40"]) == 0


def test_failures_name_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_helm()
    cases = {
        "replicas: 2\n": "values.yaml: unknown key 'replicas'; did you mean 'replicaCount'?",
        "replicaCount: two\n": "values.yaml: replicaCount: got string, want integer",
        "a: 1\na: 2\n": "values.yaml:2: 'a' is given twice",
        "- a\n": "values.yaml: not a mapping of values",
        "a: [\n": "values.yaml:2: invalid YAML",
    }
    path = tmp_path / "values.yaml"
    for text, message in cases.items():
        path.write_text(text)
        assert k8s(["render", "demo", "--values", str(path)]) == 1
        assert message in capsys.readouterr().err
    assert k8s(["render", "demo", "-f", str(tmp_path / "absent.yaml")]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_the_source_of_an_invalid_value_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_helm()
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("replicaCount: 2\n")
    bad.write_text("autoscaling:\n  maxReplica: 3\n")
    assert k8s(["render", "demo", "-f", str(bad), "-f", str(good)]) == 1
    assert capsys.readouterr().err.startswith(f"conch k8s: {bad}: unknown key 'autoscaling.maxReplica'; did you mean")
    assert k8s(["render", "demo", "-f", str(good), "--set", "autoscaling.type=both"]) == 1
    assert capsys.readouterr().err.startswith("conch k8s: values: autoscaling.type: value must be one of 'none'")


def test_a_dot_without_a_backslash_in_a_key_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    require_helm()
    assert k8s(["render", "demo", "--set", "resources.limits.nvidia.com/gpu=1"]) == 1
    assert r"in --set, write a dot within a key as '\.', such as nvidia\.com/gpu, in quotes" in capsys.readouterr().err
    assert k8s(["render", "demo", "--set", r"resources.limits.nvidia\.com/gpu=1"]) == 0
    assert "nvidia.com/gpu: " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["7b", "Demo", "a" * 54, "a.b"])
def test_names_that_no_service_can_have_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        k8s(["render", name])
    assert exit_.value.code == 2
    assert f"'{name}' is not a valid release name" in capsys.readouterr().err
