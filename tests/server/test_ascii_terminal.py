"""Commands on a terminal that says it is ASCII: what it cannot show is escaped, and no command fails for it."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.server.test_openai import write_scripted
from tests.support.server_process import ConchProcess


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_scripted(tmp_path / "models" / "caf\u00e9", {"reply": "\u2713 done"})
    (tmp_path / "models" / "bro\u2713ken" / "1").mkdir(parents=True)
    Path(os.fsdecode(os.fsencode(tmp_path / "models") + b"/not-utf8-\xff/1")).mkdir(parents=True)
    return tmp_path / "models"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "conch", *arguments],
        env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", **environment},
        capture_output=True,
        timeout=60,
    )


def test_no_command_fails_for_what_it_prints(models: Path) -> None:
    for arguments, words in (
        (("check", str(models)), b"bro\\u2713ken"),
        (("check", str(models), "--json"), b"u2713"),
        (("repo", "list", str(models)), b"caf\\xe9"),
        (("repo", "show", str(models), "caf\u00e9"), b"scripted"),
        (("repo", "show", str(models), "n\u00f4"), b"n\\xf4"),
        (
            ("repo", "add", str(models / "caf\u00e9"), "--repository", str(models.parent / "n\u00f6")),
            b"n\\xf6/caf\\xe9",
        ),
    ):
        result = run(*arguments)
        assert b"Traceback" not in result.stderr, result.stderr
        assert words in result.stdout + result.stderr


def test_an_ascii_file_system_encoding_is_supported(models: Path) -> None:
    result = run("check", str(models), PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert b"Traceback" not in result.stderr, result.stderr


def test_a_server_logs_and_lists_such_names(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    with ConchProcess(models, "--exit-on-error=false", log=tmp_path / "log", wait="live") as server:
        server.until_logged("caf.xe9")  # codespell:ignore
        url = f"http://{server.http}/v2/repository/index"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30) as answer:
            rows = json.load(answer)
        assert {row["name"] for row in rows} == {"caf\u00e9", "bro\u2713ken"}
