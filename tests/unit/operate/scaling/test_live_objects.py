"""Objects as `kubectl get --output=yaml` prints them from a cluster: with status, managed fields, empty mappings."""

from pathlib import Path

import pytest
import yaml

from conch.base.yaml_documents import load_documents
from conch.operate.fleet.scaling_loop import read_policy
from conch.operate.scaling.commands.command import autoscale
from conch.operate.scaling.keda.spec import read_scaled_object

LIVE = Path(__file__).parent / "live"


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize(("flag", "name"), [("--scaled-object", "scaled-object.yaml"), ("--hpa", "hpa.yaml")])
def test_live_objects_are_simulated(
    flag: str, name: str, as_list: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = yaml.safe_load((LIVE / name).read_text())
    file, written = tmp_path / "live.yaml", tmp_path / "winner.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [live]} if as_list else live))
    arguments = ["simulate", flag, str(file), "--traffic=steady:20", "--duration=20m", "--slo=latency:500ms"]
    assert autoscale([*arguments, "--service-time=50ms", f"--output={written}"]) == 0
    # What is written can be applied: the API server refuses another version or identity.
    (winner,) = (document.value for document in load_documents(written.read_text()))
    assert winner["metadata"].keys() <= {"name", "namespace", "labels", "annotations"}
    assert "status" not in winner
    assert winner["spec"] == live["spec"]
    capsys.readouterr()


@pytest.mark.parametrize("name", ["scaled-object.yaml", "hpa.yaml"])
def test_live_objects_scale_a_fleet(name: str) -> None:
    live = yaml.safe_load((LIVE / name).read_text())
    assert read_policy([live]).release == "demo"
    assert read_policy([{"apiVersion": "v1", "kind": "List", "items": [live]}]).release == "demo"


def test_empty_scaling_modifiers_have_the_effect_of_none() -> None:
    live = yaml.safe_load((LIVE / "scaled-object.yaml").read_text())
    assert live["spec"]["advanced"]["scalingModifiers"] == {}
    assert read_scaled_object(live).modifiers is None
