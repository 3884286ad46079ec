from pathlib import Path

import pytest

from conch.cli.tune.command import tune


def test_a_repository_that_is_not_a_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "models"
    with pytest.raises(SystemExit) as ended:
        tune(["echo", "--repository", str(missing)])
    assert ended.value.code == 2
    assert f"'{missing}' is not a folder" in capsys.readouterr().err
