"""Errors in configurations: their places, several at once, and fixes."""

from pathlib import Path

import pytest

from conch.check.command import check
from tests.unit.check.repository import TENSORS, findings_of, only_finding, write, write_python


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (
            "max_batch_size: 4\ndynamic_batching {\n  preferred_batch_size: [ 2, 8 ]\n}",
            6,
            "preferred size must be <= max",
        ),
        ("instance_group [\n  { kind: KIND_CPU },\n  { kind: KIND_CPU\n    gpus: [ 0 ] }\n]", 6, "has kind KIND_CPU"),
        (
            'model_warmup { name: "w" batch_size: 1\n  inputs { key: "a" value { data_type: TYPE_FP32 dims: 3 } } }',
            4,
            "must specify zero_data",
        ),
        (
            "max_batch_size: 4 sequence_batching {\n  direct { minimum_slot_utilization: 2 } }",
            5,
            "minimum slot utilization",
        ),
        ("\n# a comment with max_batch_size\nmax_batch_size: -1", 6, "must be non-negative"),
        ('default_model_filename: "../model.py"', 4, "leads out of its folder"),
    ],
)
def test_the_place_of_a_broken_rule(text: str, line: int, said: str, tmp_path: Path) -> None:
    write_python(tmp_path, "m", TENSORS + text)
    finding = next(mistake for mistake in findings_of(tmp_path) if mistake.rule.id == "config-invalid")
    assert said in finding.message
    assert finding.place.line == line


def test_the_place_of_a_tensor_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    tensors = 'input [\n  { name: "A" data_type: TYPE_FP32 dims: [ 1 ] },\n  { name: "B" dims: [ 1 ] }\n]'
    write(tmp_path / "m" / "config.pbtxt", f'backend: "identity"\n{tensors}')
    assert (only_finding(tmp_path).place.line, only_finding(tmp_path).place.column) == (4, 3)


def test_several_mistakes_are_found_at_once(tmp_path: Path) -> None:
    write_python(
        tmp_path,
        "m",
        """
        name: "other"
        max_batchsize: 4
        input [ { name: "IN" data_type: FP32 dims: [ 4 ] } ]
        output [ { name: "OUT", data_type: "TYPE_FP32", dims: [ 4, ] } ]
        default_model_filename: "../model.py"
        dynamic_batching [ { preferred_batch_size: [ 8 ] } ]
        """,
    )
    rules = [finding.rule.id for finding in findings_of(tmp_path)]
    assert rules == [
        "model-name", "config-unknown", "config-unknown", "config-unknown", "config-syntax", "config-invalid",
        "config-syntax", "config-invalid",
    ]  # fmt: skip


def test_certain_fixes_are_applied_and_others_are_not(tmp_path: Path) -> None:
    path = write_python(tmp_path, "m") / "config.pbtxt"
    write(
        path,
        """
        backend: python
        max_batchsize: 4  # which field is meant, a program cannot know
        input [ { name: "IN" data_type: FP32 dims: [ 4 ] } ]
        output [ { name: "OUT", data_type: "TYPE_FP32", dims: [ 4, ] } ]
        """,
    )
    path.chmod(0o640)
    assert check(["--fix", str(tmp_path)]) == 1
    assert path.read_text() == (
        'backend: "python"\n'
        "max_batchsize: 4  # which field is meant, a program cannot know\n"
        'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]\n'
        'output [ { name: "OUT", data_type: TYPE_FP32, dims: [ 4 ] } ]\n'
    )
    assert path.stat().st_mode & 0o777 == 0o640
    assert [finding.rule.id for finding in findings_of(tmp_path)] == ["config-unknown"]
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["1", "config.pbtxt"]


def test_only_the_selected_rules_are_fixed(tmp_path: Path) -> None:
    path = write_python(tmp_path, "m", TENSORS + "max_batch_size: 4 dynamic_batching [ { } ]") / "config.pbtxt"
    before = path.read_text()
    assert check(["--fix", "--ignore", "config-syntax", str(tmp_path)]) == 0
    assert path.read_text() == before


@pytest.mark.parametrize("inside", ["{ }, { }", "", "{ } # why"])
def test_a_list_of_several_messages_is_not_fixed(inside: str, tmp_path: Path) -> None:
    path = write_python(tmp_path, "m", f"{TENSORS}max_batch_size: 4\ndynamic_batching [ {inside}\n]\n") / "config.pbtxt"
    before = path.read_text()
    assert check(["--fix", str(tmp_path)]) == 1
    assert path.read_text() == before


def test_line_ends_and_byte_order_marks_are_kept(tmp_path: Path) -> None:
    path = write_python(tmp_path, "m") / "config.pbtxt"
    write(path, b"\xef\xbb\xbfbackend: python\r\nmax_batch_size: 1\r\n")
    assert check(["--fix", str(tmp_path)]) == 0
    assert path.read_bytes() == b'\xef\xbb\xbfbackend: "python"\r\nmax_batch_size: 1\r\n'


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    write_python(tmp_path, "m")
    (tmp_path / "empty").mkdir()
    assert only_finding(tmp_path).place.path == tmp_path / "empty"
    assert "Could not determine backend" in only_finding(tmp_path).message


def test_a_configuration_that_is_not_text(tmp_path: Path) -> None:
    write(write_python(tmp_path, "m") / "config.pbtxt", b"\xff\xfe\x00")
    assert "not UTF-8 text" in only_finding(tmp_path).message


def test_a_backend_whose_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conch.check.models.config.find_spec", lambda name: None)
    write_python(tmp_path, "m")
    assert only_finding(tmp_path).rule.id == "backend-not-installed"
