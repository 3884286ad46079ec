"""Flags of `conch bench` whose fault is found before a server is asked, rather than after minutes of load."""

import gc
import os
from pathlib import Path

import pytest

from conch.measure.bench.command import bench

NOWHERE = "127.0.0.1:1"  # asking it would fail with another message


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")  # restored after the test, whatever the command sets


def refusal(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    try:
        status = bench([NOWHERE, "m", *flags])
    except SystemExit as exit_:
        status = int(exit_.code or 0)
    assert status == 2
    message = capsys.readouterr().err
    assert "nothing listens" not in message
    return message


@pytest.mark.parametrize("flag", ["--json", "--html", "--csv", "--long-csv", "--markdown", "--records"])
def test_files_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path, flag: str) -> None:
    assert f"{flag}: the folder '{tmp_path}/missing' does not exist" in refusal(capsys, f"{flag}={tmp_path}/missing/a")
    assert f"{flag}: '{tmp_path}' is a folder" in refusal(capsys, f"{flag}={tmp_path}")


def test_a_folder_that_is_not_writable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A report is written beside its file and renamed: permission for the file does not suffice."""
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != tmp_path)  # root may write everywhere
    (tmp_path / "a").touch()
    assert f"--json: '{tmp_path}' is not writable" in refusal(capsys, f"--json={tmp_path}/a")
    assert f"--records: '{tmp_path}' is not writable" in refusal(capsys, f"--records={tmp_path}/b")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--percentile=150", "'150' is not a percentile: expected a number between 0 and 100"),
        ("--percentile=nan", "'nan' is not a percentile"),
        ("--seed=-1", "'-1' is not a number of 0 or more"),
        ("--tolerance=-1", "'-1' is not a ratio"),
        ("--prefix-tokens=-4", "'-4' is not a number of 0 or more"),
        ("--rounds=2", "--rounds needs --against"),
        ("--against=localhost:2 --repeat=2", "--repeat does not apply to --against; use --rounds"),
        ("--find-max --slo=latency:1s --against=localhost:2", "--find-max searches once, on one server"),
        ("--find-max --slo=latency:1s --repeat=2", "--find-max searches once, on one server"),
        ("--steps=3", "--steps needs a range"),
        ("--steps=3 --trace=x", "x"),
        ("--find-max --slo=latency:1s --concurrency=1:8 --steps=3", "excludes --find-max"),
        ("--concurrency=1:40000", "40,000 levels are more than 1,000"),
        ("--json=x --html=./x", "--json and --html name the same file"),
    ],
)
def test_flags_that_cannot_be_used(capsys: pytest.CaptureFixture[str], flags: str, message: str) -> None:
    assert message in refusal(capsys, *flags.split())


def test_the_process_is_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    refusal(capsys, "--rounds=2")
    assert gc.isenabled()
    assert os.environ["OPENBLAS_NUM_THREADS"] == "2"


def test_linear_algebra_starts_no_threads(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    refusal(capsys, "--rounds=2")
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
