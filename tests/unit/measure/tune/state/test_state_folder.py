"""State of `conch tune` that was tampered with, damaged, or written by another user, and a full disk."""

import json
import os
import resource
import signal
from pathlib import Path

import pytest

from conch.measure.tune.command import tune
from conch.measure.tune.repository_client import ServerAccess
from conch.measure.tune.state.applied import read_applied
from conch.measure.tune.state.folder import StateFolder, Trial, TrialLog
from conch.measure.tune.state.saved_state import SavedModel, SavedState, saved_state
from conch.measure.tune.trials import TrialRunner

STATE = SavedState("r", 1, "now", ServerAccess("http://localhost:1"), "m", (SavedModel("m", None),))
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    folder = StateFolder.of(tmp_path / "state", "http://localhost:1", "m")
    folder.create()
    STATE.save(folder)
    assert saved_state(folder) == STATE
    return folder


@pytest.mark.parametrize(
    "damaged",
    ["", "{", "[]", "null", "1", '"x"', "{}", '{"format": 2}', '{"format": 1}', '{"format": 1, "access": 5}',
     '{"format": 1, "access": {"url": "u", "evil": 1}}', "[" * 100_000, "\udcff"],
)  # fmt: skip
def test_damaged_state_is_named(folder: StateFolder, damaged: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder.restore.write_bytes(damaged.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match="is damaged: "):
        saved_state(folder)
    folder.applied.write_bytes(damaged.encode("utf-8", "surrogateescape"))
    folder.applied.chmod(0o600)
    with pytest.raises(ValueError, match=r"is damaged|codec"):
        read_applied(folder)
    assert tune(["--restore", "--state-dir", str(folder.path.parent)]) == 1
    assert "is damaged: " in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{}", "[]", "5", '"x"', "\xff", "null", '{"environment": "e", "settings": 1}'])
def test_damaged_trials_are_ignored(folder: StateFolder, text: str) -> None:
    folder.trials.write_bytes(text.encode("latin-1"))
    folder.trials.chmod(0o600)
    log = TrialLog(folder, {})
    log.read()
    assert log.count == 0


@pytest.mark.parametrize(
    "change",
    [{"models": [{"name": 5, "config": None}]}, {"models": [{"name": "m", "config": "x"}]}, {"models": {"name": "m"}},
     {"files": [{"path": None, "text": "x"}]}, {"files": [{"path": "p", "text": 5}]}, {"pid": "x"}, {"model": 5},
     {"run": []}, {"started_at": {}}, {"access": {"url": 5}}, {"access": {"url": "u", "api_key_file": 7}}, {"more": 1}],
)  # fmt: skip
def test_state_of_wrong_types_is_named(
    folder: StateFolder, change: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    folder.restore.write_text(json.dumps({**json.loads(folder.restore.read_text()), **change}))
    assert tune(["--restore", "--state-dir", str(folder.path.parent)]) == 1
    assert "is damaged: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [{"figures": {"p99": "x"}}, {"settings": {"batch": {}}}, {"effort": "x"}, {"failure": 5}, {"stages": {"a": 1}},
     {"notes": "x"}, {"settings": [["batch", 1]]}],
)  # fmt: skip
def test_trials_of_wrong_types_are_ignored(folder: StateFolder, change: dict[str, object]) -> None:
    log = TrialLog(folder, {})
    log.append(Trial({"batch": 1, "sizes": (1, 2), "name": None}, 1.0, {"p99": 0.5}, notes=("n",)))
    log.read()
    assert log.count == 1
    line = json.loads(folder.trials.read_text())
    folder.trials.write_text(json.dumps({**line, **change}))
    log = TrialLog(folder, {})
    log.read()
    assert log.count == 0


def test_names_in_state_do_not_control_the_terminal(folder: StateFolder, capsys: pytest.CaptureFixture[str]) -> None:
    state = json.loads(folder.restore.read_text())
    folder.restore.write_text(json.dumps({**state, "model": "\x1b]0;owned\x07", "pid": -1}))
    assert folder.lock()
    assert tune(["--restore", "--state-dir", str(folder.path.parent)]) == 1
    folder.restore.write_text(json.dumps({**state, "\x1b[2J": 1}))
    assert tune(["--restore", "--state-dir", str(folder.path.parent)]) == 1
    folder.unlock()
    said = capsys.readouterr().err
    assert "owned" in said
    assert "\x1b" not in said


def evil(folder: StateFolder, target: Path) -> None:
    """Make a state whose restoration writes a file."""
    document = json.loads(folder.restore.read_text())
    folder.restore.write_text(json.dumps({**document, "files": [{"path": str(target), "text": "evil"}]}))


@as_root
@pytest.mark.parametrize("of_folder", [True, False])
def test_state_of_another_user_is_refused(
    folder: StateFolder, tmp_path: Path, of_folder: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    evil(folder, tmp_path / "written")
    os.chown(folder.path if of_folder else folder.restore, 65534, 65534)
    for refused in (lambda: saved_state(folder), lambda: read_applied(folder), folder.create):
        with pytest.raises(PermissionError, match="of this user that others cannot write to"):
            refused()
    assert tune(["--restore", "--state-dir", str(folder.path.parent)]) == 1
    assert "of this user that others cannot write to" in capsys.readouterr().err
    assert not (tmp_path / "written").exists()


def test_state_that_others_may_write_is_refused(folder: StateFolder, tmp_path: Path) -> None:
    evil(folder, tmp_path / "written")
    folder.restore.chmod(0o662)
    with pytest.raises(PermissionError, match="must be a file of this user"):
        saved_state(folder)
    folder.restore.chmod(0o600)
    folder.path.chmod(0o777)
    with pytest.raises(PermissionError, match="must be a folder of this user"):
        saved_state(folder)


@pytest.mark.parametrize("name", ["restore", "applied", "trials"])
def test_links_are_refused(folder: StateFolder, tmp_path: Path, name: str) -> None:
    path: Path = getattr(folder, name)
    path.unlink(missing_ok=True)
    (tmp_path / "elsewhere").write_text("{}")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="must be a file of this user"):
        folder.create()


def test_a_linked_folder_is_refused(tmp_path: Path) -> None:
    folder = StateFolder.of(tmp_path / "state", "http://localhost:1", "m")
    folder.path.parent.mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="must be a folder of this user"):
        folder.create()


def test_a_full_disk_does_not_end_a_run(folder: StateFolder) -> None:
    said: list[str] = []
    runner = TrialRunner(None, None, None, TrialLog(folder, {}), lambda: None, 0, say=said.append)  # type: ignore[arg-type]
    trial = Trial({"instances": 2}, 1.0, {"throughput": 5.0})
    limits, before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        for _ in range(3):
            runner._append(trial)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert len(said) == 1
    assert "trials cannot be stored" in said[0]
    runner._append(trial)
    log = TrialLog(folder, {})
    log.read()
    assert log.count == 1
