"""Folders of uploaded files: limits, and removal after their server has ended."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from conch.base.errors import ConfigError
from conch.server.repository import override
from conch.server.repository.override import UploadFolders
from conch.server.repository.temporary_folders import remove_abandoned

WRITE = """
import sys
from conch.server.repository.override import UploadFolders
folders = UploadFolders()
print(folders.write("m", {"1/model.py": b"x"}), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def upload(temporary: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a process that has uploaded files and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().decode().strip())


def test_folders_of_a_killed_server_are_removed_and_those_in_use_are_not(temporary: Path) -> None:
    killed, left = upload(temporary)
    running, used = upload(temporary)
    with killed, running:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.is_dir()
        assert remove_abandoned() == 1
        assert not left.parent.exists()
        assert used.is_dir()
        assert remove_abandoned() == 0
        assert running.stdin is not None
        running.stdin.close()
        assert running.wait() == 0
    assert list(temporary.iterdir()) == []


def test_folders_of_others_are_not_removed(temporary: Path) -> None:
    (temporary / "conch-model-uploads.1").write_text("a file")
    (temporary / "elsewhere").mkdir()
    (temporary / "conch-model-uploads.2").symlink_to(temporary / "elsewhere")
    (temporary / "conch-model-uploads.3").mkdir()
    assert remove_abandoned() == 0
    assert len(list(temporary.iterdir())) == 4


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("1/" + "a/" * 2_000 + "model.py", "has 4010 bytes; the limits are 2048, and 255 for each name in it"),
        ("1/" + "a/" * 80 + "model.py", "is 82 folders deep; the limit is 64"),
        ("1/" + "a" * 5_000, "has 5002 bytes"),
        ("1/" + "a" * 300, "has 302 bytes; the limits are 2048, and 255 for each name in it"),
        ("1/\ud800", r"the path '1/\\ud800' is not UTF-8"),
        ("../m", "the path '../m' leads out of its folder"),
    ],
)
def test_paths_are_bounded(path: str, complaint: str) -> None:
    folders = UploadFolders()
    with pytest.raises(ConfigError, match=complaint) as raised:
        folders.write("m", {"1/first": b"", path: b"x"})
    assert raised.value.message.encode()
    assert not list(Path(tempfile.gettempdir()).glob("*/model-*"))


def test_number_and_size_of_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = UploadFolders()
    with pytest.raises(ConfigError, match="has 10001 'file:' parameters; the limit is 10000"):
        folders.write("m", {f"1/{number}": b"" for number in range(10_001)})
    monkeypatch.setattr(override, "MAX_FILES_BYTES", 10)
    with pytest.raises(ConfigError, match="its files have 11 bytes; the limit is 10"):
        folders.write("m", {"1/a": b"12345", "1/b": b"123456"})
