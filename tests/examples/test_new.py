"""`conch new`: what each template creates passes its own tests, and its client talks to its server."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conch.clients.python_app.new import create, new, templates
from tests.support.server_process import ConchProcess

ROOT = Path(__file__).parents[2]
NEEDED = {"pytorch": "torch", "sklearn": "sklearn", "pipeline": "PIL", "onnx": "onnxruntime", "llm": "openvino_genai"}
OUTPUT = {
    "pytorch": "[[0.",
    "sklearn": "[0, 2]",
    "pipeline": "red 1.0",
    "onnx": "[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]",
    "llm": "",
}


def run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(NEEDED))
def test_a_new_model_passes_its_tests_and_serves_its_client(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec(NEEDED[kind]) is None:
        pytest.skip(f"{NEEDED[kind]} is not installed")
    monkeypatch.chdir(tmp_path)
    assert new(["defect_finder", "--from", kind]) == 0
    folder = tmp_path / "defect_finder"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if "my_model" in str(path) or b"my_model" in path.read_bytes().lower()] == []
    assert [path.name for path in files if path.name in ("README.md", "client.py")] != []
    assert f"{folder.name}/client.py" in capsys.readouterr().out
    if kind == "llm":
        model = ROOT / "examples" / "models" / "chat" / "1"
        for file in ("model.gguf", "model.json"):
            shutil.copy(model / file, folder / "models" / "defect_finder" / "1" / file)
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", folder=folder)
    repository = folder / "models" if (folder / "models").exists() else folder / "app.py"
    with ConchProcess(repository, log=tmp_path / "log") as conch:
        printed = run("client.py", f"http://{conch.http}", folder=folder)
    assert printed.strip()
    assert OUTPUT[kind] in printed


def test_every_template_is_tested() -> None:
    assert sorted(folder.name for folder in templates().iterdir()) == sorted(NEEDED)


def test_names_of_files_and_classes_follow(tmp_path: Path) -> None:
    files = create(tmp_path / "defect_finder", "onnx")
    assert tmp_path / "defect_finder" / "models" / "defect_finder" / "config.pbtxt" in files
    create(tmp_path / "scan", "pytorch")
    assert '@conch.model(name="scan", ' in (tmp_path / "scan" / "app.py").read_text()
    assert "class Scan:" in (tmp_path / "scan" / "app.py").read_text()


def test_refused_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert new(["there", "--from", "onnx"]) == 1
    assert capsys.readouterr().err == "conch new: 'there' exists; choose another name, or remove it\n"
    for arguments, message in (
        (["my-model", "--from", "onnx"], "letters, digits and _; did you mean 'my_model'?"),
        (["../up", "--from", "onnx"], "'../up' is not valid: a name begins with a letter"),
        (["model", "--from", "onx"], "--from: unknown value 'onx'; did you mean 'onnx'?"),
        (["model"], "the following arguments are required: --from"),
    ):
        with pytest.raises(SystemExit):
            new(arguments)
        assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
