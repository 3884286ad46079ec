"""`conch repo list` and `conch repo show`."""

from pathlib import Path

import pytest

from conch.clients.repository.command import repo


@pytest.fixture
def repository(tmp_path: Path) -> str:
    model = tmp_path / "echo"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text("")
    (model / "config.pbtxt").write_text('backend: "python" max_batch_size: 4')
    return str(tmp_path)


def test_an_unknown_model_is_named_with_a_similar_one(repository: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert repo(["show", repository, "ecko"]) == 1
    assert capsys.readouterr().err == (f"conch repo show: model 'ecko' is not in {repository}; did you mean 'echo'?\n")
    assert repo(["show", f"{repository}/none", "echo"]) == 1
    assert "cannot be read: No such file or directory" in capsys.readouterr().err


def test_tensors_that_the_configuration_lacks_are_set_at_load(
    repository: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repo(["list", repository]) == 0
    assert capsys.readouterr().out.count("set at load") == 2


def test_a_narrow_table_names_the_command_for_tensors(
    repository: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal to the library
    monkeypatch.setenv("COLUMNS", "80")
    assert repo(["list", repository]) == 0
    out = capsys.readouterr().out
    assert f"conch repo show {repository} MODEL prints inputs and outputs." in out
    assert "set at load" not in out
