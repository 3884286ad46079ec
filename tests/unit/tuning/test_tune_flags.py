import socket
from pathlib import Path

import pytest

from conch.cli.tune.command import tune


def test_a_repository_that_is_not_a_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "models"
    with pytest.raises(SystemExit) as ended:
        tune(["echo", "--repository", str(missing)])
    assert ended.value.code == 2
    assert f"'{missing}' is not a folder" in capsys.readouterr().err


def test_a_server_that_does_not_run_is_named_without_a_python_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as reserved:  # bound, but not listening
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        assert tune(["echo", "--url", url]) == 1
    expected = f"no answer from {url}: connection refused; is the server running, on this port?"
    assert capsys.readouterr().err == f"conch tune: {expected}\n"
