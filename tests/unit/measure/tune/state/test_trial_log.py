from pathlib import Path

import pytest

from conch.measure.tune.state.folder import StateFolder, Trial, TrialLog


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    folder = StateFolder.of(tmp_path, "http://localhost:8000", "m")
    folder.create()
    return folder


TRIAL = Trial({"instances": 2, "preferred_batch_sizes": (4, 8)}, 1.0, {"throughput": 5.0}, notes=("x",))


def test_trials_are_found_again_each_once(folder: StateFolder) -> None:
    TrialLog(folder, {"server": "a"}).append(TRIAL)
    log = TrialLog(folder, {"server": "a"})
    log.read()
    assert log.count == 1
    assert log.earlier(TRIAL.settings, 1.0, "search") == TRIAL
    assert log.earlier(TRIAL.settings, 1.0, "search") is None


def test_another_environment_has_no_trials(folder: StateFolder) -> None:
    TrialLog(folder, {"server": "a"}).append(TRIAL)
    log = TrialLog(folder, {"server": "b"})
    log.read()
    assert log.count == 0


def test_a_line_that_was_cut_off_is_ignored_and_does_not_spoil_the_next(folder: StateFolder) -> None:
    log = TrialLog(folder, {})
    log.append(TRIAL)
    whole = folder.trials.read_text()
    folder.trials.write_text(whole + whole[:40])
    log.append(TRIAL)
    again = TrialLog(folder, {})
    again.read()
    assert again.count == 2


def test_folders_of_models_and_servers_differ(tmp_path: Path) -> None:
    urls = ("http://a:8000", "http://b:8000")
    paths = {StateFolder.of(tmp_path, url, model).path for url in urls for model in ("m", "n")}
    assert len(paths) == 4


def test_the_lock_excludes_other_processes(folder: StateFolder) -> None:
    import subprocess
    import sys

    assert folder.lock()
    code = (
        "import sys; from pathlib import Path; from conch.measure.tune.state.folder import StateFolder; "
        "sys.exit(StateFolder(Path(sys.argv[1])).lock())"
    )
    assert subprocess.run([sys.executable, "-c", code, str(folder.path)], check=False).returncode == 0
    folder.unlock()
    assert subprocess.run([sys.executable, "-c", code, str(folder.path)], check=False).returncode == 1
