"""`conch check`: output, JSON, fixes and exit status."""

import json
from pathlib import Path

import pytest

from conch.check.command import check
from tests.unit.check.repository import TENSORS, write, write_python


def test_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_python(tmp_path, "m")
    assert check([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no problems in 1 model and 0 other files\n"


def test_the_output_of_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_python(tmp_path, "m", TENSORS + "max_batchsize: 4")
    assert check([str(tmp_path)]) == 1
    assert capsys.readouterr().out == (
        f"error[config-unknown] {tmp_path}/m/config.pbtxt:4:1\n"
        "     4 | max_batchsize: 4\n"
        "       | ^\n"
        "  unknown field 'max_batchsize' in ModelConfig; did you mean 'max_batch_size'?\n"
        "  why: The server cannot read the configuration and refuses the model.\n"
        "  fix: Correct the name, or remove the field.\n"
        "\n"
        "1 error in 1 model and 0 other files\n"
    )


def test_findings_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_python(tmp_path, "m", TENSORS + "max_batch_size: 4 dynamic_batching [ { } ]")
    assert check(["--json", str(tmp_path)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["summary"] == {"models": 1, "files": 0, "errors": 1, "warnings": 0, "notices": 0}
    (finding,) = document["findings"]
    assert (finding["rule"], finding["severity"], finding["fixable"]) == ("config-syntax", "error", True)
    assert (finding["file"], finding["line"], finding["column"]) == (f"{tmp_path}/m/config.pbtxt", 4, 36)
    assert finding["message"]
    assert finding["why"]
    assert finding["cure"]


def test_a_fix_shows_what_it_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_python(tmp_path, "m", TENSORS + "max_batch_size: 4\ndynamic_batching [ { } ]")
    assert check(["--fix", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "-dynamic_batching [ { } ]\n+dynamic_batching { }\n" in shown
    assert "no problems" in shown


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ([], 0),
        (["--strict"], 1),
        (["--strict", "--ignore", "label-line-ends"], 0),
        (["--strict", "--rule", "label-line-ends"], 1),
        (["--strict", "--rule", "label-count"], 0),
    ],
)
def test_warnings_fail_with_strict(options: list[str], status: int, tmp_path: Path) -> None:
    write_python(tmp_path, "m", TENSORS.replace('"OUT"', '"OUT" label_filename: "labels.txt"'))
    write(tmp_path / "m" / "labels.txt", b"a\r\nb\r\nc\r\nd\r\n")
    assert check([*options, str(tmp_path)]) == status


def test_a_wrong_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check([str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err
    for arguments in ([], ["--rule", "no-such-rule", str(tmp_path)]):
        with pytest.raises(SystemExit) as ended:
            check(arguments)
        assert ended.value.code == 2
