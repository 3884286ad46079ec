import socket
from pathlib import Path

import pytest

from conch.measure.tune.command import tune
from tests.measure.bench.targets.odd_servers import scripted


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
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        assert tune(["echo", "--url", f"http://{address}"]) == 1
    expected = f"nothing listens at {address}: connection refused; is the server running, on this port?"
    assert capsys.readouterr().err == f"conch tune: {expected}\n"


def test_a_page_instead_of_an_answer_is_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = b"<!DOCTYPE HTML>" + b"<p>not found</p>" * 100
    with scripted({"/v2": (404, {}, page)}) as address:
        assert tune(["echo", "--url", f"http://{address}"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("conch tune: GET /v2 answered 404 and '<!DOCTYPE HTML>")
    assert error.endswith("which is not JSON; is the URL that of an inference server?\n")
    assert len(error) < 200
