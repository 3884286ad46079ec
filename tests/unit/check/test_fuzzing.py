"""Any file contents give findings and never an exception."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from conch.check.check_paths import check_paths
from conch.check.models.config import check_config
from tests.unit.check.repository import ECHO, TENSORS, findings_of, ids, only_finding, write, write_python
from tests.unit.check.test_known_mistakes import PIPELINE, POSTPROCESS

CONFIG = """
name: "m" backend: "python" max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1, 85 ] }, { name: "B" dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] label_filename: "labels.txt" } ]
dynamic_batching [ { preferred_batch_size: [ 4, 8 ] } ]
parameters { key: 'a' value: { string_value: "b" } }  # and so on
instance_group < kind: KIND_CPU >
"""
SCRIPT = 'tritonserver --model-repository=/m \\\n --http-port \'x\' ["--cpu-only", "a"] && conch serve --x\n'


def mangled(text: str, chance: Random) -> str:
    """A text with some of its pieces removed, doubled, exchanged or replaced."""
    pieces = text.replace("(", " ( ").split(" ")
    for _ in range(chance.randrange(1, 6)):
        at, other = chance.randrange(len(pieces)), chance.randrange(len(pieces))
        change = chance.randrange(4)
        if change == 0:
            pieces[at] = chance.choice(["", "[", "]", "{", "}", '"', "'", ",", ":", "\n", "\\", "\0", "é", "0", "-1"])
        elif change == 1:
            pieces[at], pieces[other] = pieces[other], pieces[at]
        elif change == 2:
            pieces.insert(at, pieces[other])
        elif len(pieces) > 1:
            del pieces[at]
    return " ".join(pieces)


@pytest.mark.parametrize("seed", range(8))
def test_mangled_repositories(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)
    for number in range(25):
        model = tmp_path / f"models/m{number}"
        write(model / "config.pbtxt", mangled(CONFIG, chance))
        write(model / "1" / "model.py", mangled(chance.choice((PIPELINE, POSTPROCESS)), chance))
        write(tmp_path / f"run{number}.sh", mangled(SCRIPT, chance))
        write(
            tmp_path / f"values{number}.yaml",
            mangled("image:\n  repository: a/b\n  tag: c\nenv:\n - name: shm-size\n", chance),
        )
    report = check_paths([tmp_path])
    assert (report.models, report.files) == (25, 50)
    for finding in report.findings:
        assert finding.message
        assert finding.place.path.exists()


HOSTILE = {
    "deep.yaml": "kind: a\nb: " + "[" * 20_000,
    "aliases.yaml": "kind: a\na0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)),
    "main.tf": 'variable "a" {\n' * 10_000,
    "heredocs.tf": "<<-EOT\n" * 10_000,
    "run.sh": "ssh -L " * 10_000 + "tritonserver " * 10_000,
    "Dockerfile": "FROM a \\\n" * 10_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_take_bounded_time(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, HOSTILE[name].encode())
    assert check_paths([tmp_path]).files == 1


def test_pipes_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    write(tmp_path / "run.sh", "tritonserver --model-repository=/models\n")
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.message) == ("file-unchecked", "pipe.yaml is not a regular file")


def test_a_query_that_is_nested_too_deeply(tmp_path: Path) -> None:
    pytest.importorskip("promql_parser")
    query = "(" * 2000 + "up" + ")" * 2000
    write(tmp_path / "rules.yaml", f"groups:\n- name: a\n  rules:\n  - alert: A\n    expr: {query} > 1\n")
    assert "nested too deeply" in only_finding(tmp_path).message


def test_commands_that_follow_each_other(tmp_path: Path) -> None:
    # Each is read once: following every one to the end of the file would take minutes.
    write(tmp_path / "run.sh", "conch serve \\\n" * 30_000 + "conch serve --no-such-flag\n")
    assert [finding.rule.id for finding in findings_of(tmp_path)] == ["flag-unknown"]


def test_a_model_file_that_is_a_pipe(tmp_path: Path) -> None:
    write(tmp_path / "m" / "config.pbtxt", 'backend: "onnxruntime"')
    (tmp_path / "m" / "1").mkdir()
    os.mkfifo(tmp_path / "m" / "1" / "model.onnx")
    assert only_finding(tmp_path).rule.id == "file-unreadable"


VLLM = {"config.pbtxt": b'backend: "vllm"', "1/model.json": b'{"model": "."}'}
PYTHON = {"config.pbtxt": f'backend: "python" {TENSORS}'.encode()}
MALFORMED: list[tuple[str, dict[str, bytes]]] = [
    ("config-unknown", {"config.pbtxt": b"a { " * 20_000, "1/model.py": ECHO.encode()}),
    ("config-unknown", {"config.pbtxt": b"a: [ " * 20_000, "1/model.py": ECHO.encode()}),
    ("python-syntax", {**PYTHON, "1/model.py": b"a = " + b"(" * 100_000}),
    ("python-syntax", {**PYTHON, "1/model.py": b"a = " + b"-" * 100_000 + b"1"}),
    ("file-damaged", {"config.pbtxt": b'backend: "onnxruntime"', "1/model.onnx": bytes(1 << 20)}),
    ("file-damaged", {"config.pbtxt": b'backend: "openvino"', "1/model.xml": b"<net>" + b"<a>" * 50_000}),
    ("file-damaged", {"config.pbtxt": b'backend: "openvino_genai"', "1/model.gguf": b"GGUF\3\0\0\0" + b"\xff" * 16}),
    ("file-damaged", {"config.pbtxt": b'backend: "pytorch"' + TENSORS.encode(), "1/model.pt": b"PK\3\4" + bytes(99)}),
    ("engine-arguments", {**VLLM, "1/model.json": b"[" * 100_000}),
    ("chat-template", {**VLLM, "1/chat_template.jinja": b"{{ " + b"(" * 3000 + b"a" + b")" * 3000 + b" }}"}),
    ("file-damaged", {**VLLM, "1/model.safetensors.index.json": b"[" * 100_000}),
    ("file-damaged", {**VLLM, "1/model.safetensors": b"\x10\0\0\0\0\0\0\0" + b"[" * 16}),
]


@pytest.mark.parametrize(("rule", "files"), MALFORMED, ids=[f"{row[0]}-{n}" for n, row in enumerate(MALFORMED)])
def test_malformed_files_of_models(rule: str, files: dict[str, bytes], tmp_path: Path) -> None:
    for name, contents in files.items():
        write(tmp_path / "m" / name, contents)
    assert rule in ids(tmp_path)


@pytest.mark.parametrize("name", ["model.json", "config.json", "tokenizer_config.json", "model.safetensors"])
def test_a_file_of_a_language_model_that_is_a_pipe(name: str, tmp_path: Path) -> None:
    for file, contents in VLLM.items():
        write(tmp_path / "m" / file, contents)
    (tmp_path / "m" / "1" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "m" / "1" / name)
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place.path.name) == ("file-unreadable", name)


def test_other_models_are_read_only_for_ensembles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write_python(tmp_path, name)
    checked = []

    def spy(path: Path) -> object:
        checked.append(path.name)
        return check_config(path)

    monkeypatch.setattr("conch.check.check_paths.check_config", spy)
    assert findings_of(tmp_path / "a") == []
    assert checked == ["a"]


def test_a_standard_input_that_is_not_text() -> None:
    command = [sys.executable, "-m", "conch", "check", "-"]
    done = subprocess.run(command, input=b"\xff", capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"conch check: 'utf-8' codec can't decode byte 0xff")
