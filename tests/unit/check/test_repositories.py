"""Checks across models: ensembles, duplicates, single models, and ignored folders."""

import subprocess
import sys
from pathlib import Path

import pytest

from conch.check.check_paths import check_paths
from tests.support.models import tensor, write_ensemble, write_identity
from tests.unit.check.repository import TENSORS, findings_of, ids, only_finding, write, write_python

FRAMEWORKS = ("onnxruntime", "torch", "openvino", "grpc", "uvloop", "cv2")


def pipeline(root: Path, *dims: int) -> None:
    write_identity(root, "first", "FP32", 4)
    write_identity(root, "second", "FP32", *dims)
    steps = [("first", {"INPUT0": "A"}, {"OUTPUT0": "b"}), ("second", {"INPUT0": "b"}, {"OUTPUT0": "C"})]
    write_ensemble(root, "both", f"input {tensor('A', 'FP32', 4)}", f"output {tensor('C', 'FP32', *dims)}", *steps)


def test_both_sides_of_a_mismatch_are_shown(tmp_path: Path) -> None:
    pipeline(tmp_path, 5)
    finding = only_finding(tmp_path)
    assert finding.rule.id == "ensemble-contract"
    assert "step 0, output of model 'first', 'OUTPUT0' FP32[4]" in finding.message
    assert "step 1, input of model 'second', 'INPUT0' FP32[5]" in finding.message
    sides = [(place.place.path.parent.name, place.place.line > 0) for place in finding.related]
    assert sides == [("first", True), ("second", True)]


def test_a_valid_ensemble(tmp_path: Path) -> None:
    pipeline(tmp_path, 4)
    assert findings_of(tmp_path) == []


def test_an_unreadable_model_leaves_its_ensemble_unchecked(tmp_path: Path) -> None:
    pipeline(tmp_path, 4)
    write(tmp_path / "second" / "config.pbtxt", 'backend: "identity"')
    assert ids(tmp_path) == ["ensemble-unchecked"]
    write(tmp_path / "second" / "config.pbtxt", "nonsense")
    assert ids(tmp_path) == ["ensemble-unchecked", "config-unknown"]


def test_a_single_ensemble_is_checked_with_its_models(tmp_path: Path) -> None:
    pipeline(tmp_path, 5)
    write(tmp_path / "first" / "config.pbtxt", (tmp_path / "first" / "config.pbtxt").read_text() + "runtime: 'x'")
    assert ids(tmp_path / "both") == ["ensemble-contract"]
    assert ids(tmp_path / "first") == ["config-no-effect"]


def test_a_model_in_two_repositories(tmp_path: Path) -> None:
    write_python(tmp_path / "a", "m")
    write_python(tmp_path / "b", "m")
    assert ids(tmp_path / "a", tmp_path / "b") == ["model-duplicate"]
    assert ids(tmp_path) == []  # below one folder, for different servers


def test_an_undeclared_output(tmp_path: Path) -> None:
    write_python(tmp_path, "m", TENSORS.replace('"OUT"', '"OUTPUT"'))
    assert set(ids(tmp_path)) == {"python-output", "python-output-missing"}


def test_hidden_folders_and_environments_are_ignored(tmp_path: Path) -> None:
    write_python(tmp_path / "models", "m")
    write(tmp_path / "env" / "pyvenv.cfg", "")
    for place in (".git", "env", "node_modules", "lost+found", "__MACOSX"):
        write(tmp_path / place / "run.sh", "tritonserver --cpu-only\n")
    report = check_paths([tmp_path])
    assert (report.models, report.files, report.findings) == (1, 0, ())


def test_folders_that_the_server_ignores_are_not_models(tmp_path: Path) -> None:
    write_python(tmp_path, "m")
    (tmp_path / "lost+found").mkdir()
    report = check_paths([tmp_path])
    assert (report.models, report.findings) == (1, ())


def test_folders_that_only_a_search_skips_are_models(tmp_path: Path) -> None:
    write_python(tmp_path, "m")
    write(tmp_path / "env" / "pyvenv.cfg", "")
    (tmp_path / "node_modules").mkdir()
    report = check_paths([tmp_path])
    assert (report.models, {finding.rule.id for finding in report.findings}) == (3, {"config-invalid"})


def test_a_misspelt_step_gets_a_suggestion(tmp_path: Path) -> None:
    write_python(tmp_path, "decoder")
    step = 'step { model_name: "decodr" input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } }'
    write(tmp_path / "both" / "config.pbtxt", f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ {step} }}')
    (tmp_path / "both" / "1").mkdir()
    [said] = [
        finding.message for finding in check_paths([tmp_path]).findings if finding.rule.id == "ensemble-missing-model"
    ]
    assert said.endswith("names model 'decodr', which does not exist; did you mean 'decoder'?")


def test_a_missing_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_paths([tmp_path / "nothing"])


@pytest.mark.slow
def test_no_framework_is_loaded(tmp_path: Path) -> None:
    pipeline(tmp_path, 4)
    write_python(tmp_path, "m")
    script = (
        "import sys; from conch.check.command import check; status = check(sys.argv[1:]);"
        f"print(status, [name for name in {FRAMEWORKS} if name in sys.modules])"
    )
    command = [
        sys.executable,
        "-c",
        script,
        str(tmp_path),
        str(Path(__file__).parents[3] / "examples" / "models" / "digits"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "0 []"
