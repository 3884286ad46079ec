"""Records of the servers of a user."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conch.base.process.running_servers import RunningServer, local_address, recorded, running_servers

SERVER = RunningServer(os.getpid(), "127.0.0.1:8000", "", "", "models", 1.0)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "conch/servers"


def listed_by_another_process() -> str:
    # A process does not see its own locks.
    code = "from conch.base.process.running_servers import *; print(*running_servers(), sep='\\n')"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_a_server_is_listed_until_it_ends(folders: Path) -> None:
    with recorded(SERVER):
        assert listed_by_another_process() == f"{SERVER}\n"
    assert list(folders.iterdir()) == []


def test_a_record_whose_pid_is_another_process_is_not_listed(folders: Path) -> None:
    with recorded(replace(SERVER, pid=SERVER.pid + 1)):  # as of another container with the same home
        assert listed_by_another_process() == "\n"
        assert len(list(folders.iterdir())) == 1


def test_the_record_of_a_killed_server_is_removed(folders: Path) -> None:
    folders.mkdir(parents=True)
    (folders / "5-6.json").write_text("{}")
    assert running_servers() == []
    assert list(folders.iterdir()) == []


def test_a_home_that_cannot_be_written_is_replaced(folders: Path, tmp_path: Path) -> None:
    folders.parent.write_text("not a folder")
    with recorded(SERVER):
        assert len(list((tmp_path / "temporary").glob("conch-*/servers/*.json"))) == 1


def test_a_user_without_a_home_has_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", refuse)  # as in a container that runs with any user id
    with recorded(SERVER):
        assert len(list((tmp_path / "temporary").glob("conch-*/servers/*.json"))) == 1


def test_a_folder_of_another_user_is_not_read(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded(SERVER):
        monkeypatch.setattr("os.geteuid", lambda: 12345)
        assert running_servers() == []
        assert len(list(folders.iterdir())) == 1


def test_addresses_for_clients_on_this_machine() -> None:
    assert local_address("0.0.0.0", 8000) == "127.0.0.1:8000"
    assert local_address("::", 8000) == "[::1]:8000"
    assert local_address("fe80::1", 8000) == "[fe80::1]:8000"
    assert local_address("gpu7", 8000) == "gpu7:8000"
    assert local_address("127.0.0.1", None) == ""
