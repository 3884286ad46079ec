"""Any file contents give findings and never an exception."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from conch.check.run import check_paths
from tests.unit.check.repository import found, one, write
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
    finding = one(tmp_path)
    assert (finding.rule.id, finding.message) == ("file-unchecked", "pipe.yaml is not a regular file")


def test_a_query_that_is_nested_too_deeply(tmp_path: Path) -> None:
    pytest.importorskip("promql_parser")
    query = "(" * 2000 + "up" + ")" * 2000
    write(tmp_path / "rules.yaml", f"groups:\n- name: a\n  rules:\n  - alert: A\n    expr: {query} > 1\n")
    assert "nested too deeply" in one(tmp_path).message


def test_commands_that_follow_each_other(tmp_path: Path) -> None:
    # Each is read once: following every one to the end of the file would take minutes.
    write(tmp_path / "run.sh", "conch serve \\\n" * 30_000 + "conch serve --no-such-flag\n")
    assert [each.rule.id for each in found(tmp_path)] == ["flag-unknown"]


def test_a_model_file_that_is_a_pipe(tmp_path: Path) -> None:
    write(tmp_path / "m" / "config.pbtxt", 'backend: "onnxruntime"')
    (tmp_path / "m" / "1").mkdir()
    os.mkfifo(tmp_path / "m" / "1" / "model.onnx")
    assert one(tmp_path).rule.id == "file-unreadable"


def test_a_standard_input_that_is_not_text() -> None:
    command = [sys.executable, "-m", "conch", "check", "-"]
    done = subprocess.run(command, input=b"\xff", capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"conch check: 'utf-8' codec can't decode byte 0xff")
