"""`conch tune` as a user runs it, against a real server."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.measure.tune.runs import TuneRun, config, post, until, write_repository
from tests.support.server_process import ConchProcess

pytestmark = pytest.mark.slow

KNOBS = ("--knob", "instances=1,2,3", "--knob", "max_batch_size=4,8")
LONG = ("--knob", "instances=2,3,4", "--window", "30s")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def conch(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    with ConchProcess(repository, "--model-control-mode=explicit", "--load-model=*", log=log) as process:
        yield process


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def _is_changed(conch: ConchProcess, model: str, before: object) -> bool:
    return config(conch, model) != before


def _begin_trials(run: TuneRun, conch: ConchProcess, model: str, before: object) -> None:
    """Return when a trial has changed the model."""
    until(lambda: _is_changed(conch, model, before) or run.process.poll() is not None)
    assert run.process.poll() is None, run.text


def test_a_run_reports_and_restores(conch: ConchProcess, state: Path, tmp_path: Path) -> None:
    before = config(conch, "echo")
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    run = TuneRun(conch, state, "echo", *KNOBS, "--share", "100%", "--json", str(report), "--html", str(page))
    assert run.wait() == 0, run.text
    assert config(conch, "echo") == before
    document = json.loads(report.read_text())
    searched = [trial for trial in document["trials"] if trial["purpose"] == "search"]
    assert len(searched) == document["space_size"] == 6
    assert {trial["settings"].get("instances", 1) for trial in searched} == {1, 2, 3}
    assert all(trial["figures"]["throughput"] > 0 for trial in document["trials"])
    assert "forecasts from the server's event log rank 6 configurations" in run.text
    assert [finalist["name"] for finalist in document["finalists"]] == ["current", "A"]
    assert "<svg" in page.read_text()
    assert not list(state.glob("*/restore.json"))
    until(lambda: not run.watchdogs())


def test_a_configuration_that_fails_to_load_is_a_result(conch: ConchProcess, state: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run = TuneRun(conch, state, "picky", "--knob", "max_batch_size=3,4", "--share", "100%", "--json", str(report))
    assert run.wait() == 0, run.text
    failed = [trial for trial in json.loads(report.read_text())["trials"] if trial["failure"]]
    # On a busy machine, others may fail too: without an answer in their short window.
    unlucky = [trial for trial in failed if "brings bad luck" in trial["failure"]]
    assert [trial["settings"]["max_batch_size"] for trial in unlucky] == [3]
    assert "brings bad luck" in run.text
    assert f"{len(failed)} failed" in run.text


def test_an_interrupted_run_continues(conch: ConchProcess, state: Path) -> None:
    before = config(conch, "echo")
    flags = ("echo", *KNOBS, "--share", "100%", "--window", "0.4s")
    first = TuneRun(conch, state, *flags)
    until(lambda: first.text.count("search ") >= 3)
    first.kill(signal.SIGTERM)
    assert first.process.returncode == 130, first.text
    assert config(conch, "echo") == before
    assert "ended early: interrupted" in first.text
    second = TuneRun(conch, state, *flags)
    assert second.wait() == 0, second.text
    assert "trials of an earlier run are reused" in second.text


def test_ctrl_c_restores(conch: ConchProcess, state: Path) -> None:
    before = config(conch, "echo")
    run = TuneRun(conch, state, "echo", "--knob", "instances=2,3,4", "--window", "2s")
    _begin_trials(run, conch, "echo", before)
    run.kill(signal.SIGINT)
    assert run.process.returncode == 130, run.text
    assert config(conch, "echo") == before
    assert not list(state.glob("*/restore.json"))


def test_sigkill_of_the_tuner_restores(conch: ConchProcess, state: Path) -> None:
    before = config(conch, "echo")
    run = TuneRun(conch, state, "echo", *LONG, "--concurrency", "1", "--window", "2s")
    _begin_trials(run, conch, "echo", before)
    run.kill()
    until(lambda: config(conch, "echo") == before and not list(state.glob("*/restore.json")))
    until(lambda: not run.watchdogs())


@pytest.mark.parametrize("how", ["restore", "start"])
def test_after_sigkill_of_tuner_and_watchdog(conch: ConchProcess, state: Path, how: str) -> None:
    before = config(conch, "echo")
    run = TuneRun(conch, state, "echo", "--knob", "instances=2,3,4", "--window", "2s")
    _begin_trials(run, conch, "echo", before)
    run.process.send_signal(signal.SIGSTOP)  # it would start another watchdog
    run.kill_watchdogs()
    run.kill()
    assert _is_changed(conch, "echo", before)
    assert len(list(state.glob("*/restore.json"))) == 1
    again = TuneRun(conch, state, *(["--restore"] if how == "restore" else ["echo", "--knob", "instances=1,2"]))
    assert again.wait() == 0, again.text
    assert "model 'echo': restored" in again.text
    assert config(conch, "echo") == before
    assert not list(state.glob("*/restore.json"))


def test_a_watchdog_that_dies_is_replaced(conch: ConchProcess, state: Path) -> None:
    before = config(conch, "echo")
    run = TuneRun(conch, state, "echo", "--knob", "instances=1:6", "--share", "100%")
    _begin_trials(run, conch, "echo", before)
    killed = run.watchdogs()
    for pid in killed:
        subprocess.run(["kill", "-KILL", str(pid)], check=False)
    until(lambda: bool(set(run.watchdogs()) - set(killed)) or run.process.poll() is not None)
    assert run.wait() == 0, run.text
    assert config(conch, "echo") == before


def test_two_tuners_of_one_model_exclude_each_other(conch: ConchProcess, state: Path) -> None:
    before = config(conch, "echo")
    first = TuneRun(conch, state, "echo", "--knob", "instances=2,3,4", "--window", "2s")
    _begin_trials(first, conch, "echo", before)
    second = TuneRun(conch, state, "echo", *KNOBS)
    assert second.wait() == 1
    assert "another conch tune works on model 'echo'" in second.text
    first.kill(signal.SIGTERM)
    assert config(conch, "echo") == before


def test_a_previous_override_is_restored(conch: ConchProcess, state: Path) -> None:
    document = config(conch, "echo")
    override = {**document, "max_batch_size": 16}
    post(conch, "/v2/repository/models/echo/load", {"parameters": {"config": json.dumps(override)}})
    try:
        before = config(conch, "echo")
        run = TuneRun(conch, state, "echo", "--knob", "instances=1,2")
        assert run.wait() == 0, run.text
        assert config(conch, "echo") == before
        assert before["max_batch_size"] == 16
    finally:
        post(conch, "/v2/repository/models/echo/load", {"parameters": {"config": json.dumps(document)}})


def test_a_model_that_was_not_loaded_is_unloaded_again(conch: ConchProcess, state: Path) -> None:
    post(conch, "/v2/repository/models/picky/unload", {})
    run = TuneRun(conch, state, "picky", "--knob", "instances=1,2")
    assert run.wait() == 0, run.text
    assert "unloaded, as before" in run.text
    conch.until("/v2/models/picky/ready", 400)
    post(conch, "/v2/repository/models/picky/load", {})


def test_an_ensemble_is_tuned_at_its_bottleneck(conch: ConchProcess, state: Path, tmp_path: Path) -> None:
    before = {name: config(conch, name) for name in ("stage_a", "stage_b")}
    report = tmp_path / "report.json"
    flags = ("--concurrency", "4", "--max-instances", "3", "--rounds", "3", "--share", "30%", "--json", str(report))
    run = TuneRun(conch, state, "pipeline", *flags)
    assert run.wait() == 0, run.text
    document = json.loads(report.read_text())
    assert document["bottleneck"] == "stage_b"
    assert any(name == "stage_b/instances" for name in document["space"])
    assert not any(name.startswith("stage_a/max") for name in document["space"])
    assert {name: config(conch, name) for name in before} == before


def test_models_that_a_bls_model_calls_are_tuned_with_it(conch: ConchProcess, state: Path) -> None:
    run = TuneRun(conch, state, "calls", "--knob", "instances=1,2", "--knob", "stage_b/instances=1,2")
    assert run.wait() == 0, run.text
    assert "model 'calls' calls stage_b" in run.text
    assert "stage_b/instances=2" in run.text


def test_a_time_budget_ends_the_search(conch: ConchProcess, state: Path) -> None:
    run = TuneRun(conch, state, "echo", "--knob", "instances=1:8", "--share", "100%", "--time-budget", "4s")
    assert run.wait() == 0, run.text
    assert "time budget 4s: about 6 measurements with windows of 0.2s: 1 of the current configuration" in run.text
    # The plan fits on an idle machine; on a busy one the clock ends the search before.
    assert "searched 4 of 8 in the grid" in run.text or "ended early: time budget" in run.text


def test_without_explicit_mode_nothing_happens(repository: Path, state: Path, tmp_path: Path) -> None:
    with ConchProcess(repository, log=tmp_path / "log") as conch:
        run = TuneRun(conch, state, "echo", *KNOBS)
        assert run.wait() == 1
        assert "start it with --model-control-mode=explicit" in run.text
        assert not list(state.glob("*/restore.json"))


def test_a_server_that_dies_during_a_trial_leaves_a_way_back(tmp_path: Path, state: Path) -> None:
    """The server dies for good: the run says what to do; another server on the port is put right by --restore."""
    repository = write_repository(tmp_path / "repository")
    flags = ("--model-control-mode=explicit", "--load-model=echo")
    with ConchProcess(repository, *flags, log=tmp_path / "log") as conch:
        before = config(conch, "echo")
        run = TuneRun(conch, state, "echo", "--knob", "instances=2,3,4", "--window", "2s", "--server-wait", "1s")
        _begin_trials(run, conch, "echo", before)
        conch.process.kill()
        conch.process.wait()
        assert run.wait() == 1, run.text
        assert "conch tune --restore" in run.text
        assert len(list(state.glob("*/restore.json"))) == 1
        run.kill_watchdogs()
        conch.process.returncode = 0  # killed on purpose
    with ConchProcess(repository, *flags, log=tmp_path / "log2") as second:
        again = TuneRun(second, state, "--restore")
        assert again.wait() == 0, again.text
        assert config(second, "echo") == before


def _apply(conch: ConchProcess, state: Path, *flags: str) -> Path:
    """Run until four instances are applied, since pauses of a busy machine hide that they are better.

    Return the folder of the run's state.
    """
    flags += ("--knob", "instances=1,4", "--share", "100%", "--apply", "--rounds", "8", "--concurrency", "4")
    for number in range(5):
        folder = state.with_name(f"state-{number}")
        run = TuneRun(conch, folder, "stage_b", *flags)
        assert run.wait() == 0, run.text
        if config(conch, "stage_b")["instance_group"][0]["count"] == 4:
            return folder
    raise AssertionError(run.text)


def test_apply_to_the_repository_and_roll_back(tmp_path: Path, state: Path) -> None:
    repository = write_repository(tmp_path / "repository")
    path = repository / "stage_b" / "config.pbtxt"
    text = path.read_text()
    flags = ("--model-control-mode=explicit", "--load-model=stage_b")
    with ConchProcess(repository, *flags, log=tmp_path / "log") as conch:
        before = config(conch, "stage_b")
        state = _apply(conch, state, "--repository", str(repository))
        assert path.read_text() == text.replace("count: 1", "count: 4")
        back = TuneRun(conch, state, "stage_b", "--rollback")
        assert back.wait() == 0, back.text
        assert path.read_text() == text
        assert config(conch, "stage_b") == before
        assert TuneRun(conch, state, "stage_b", "--rollback").wait() == 1


def test_apply_to_the_server_and_roll_back(conch: ConchProcess, state: Path) -> None:
    before = config(conch, "stage_b")
    state = _apply(conch, state)
    back = TuneRun(conch, state, "stage_b", "--rollback")
    assert back.wait() == 0, back.text
    assert config(conch, "stage_b") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "a model is needed"),
        (("echo", "--maximize", "p99"), "'p99' is minimized"),
        (("echo", "--knob", "instances_=1"), "unknown knob 'instances_'"),
        (("echo", "--goodput"), "--goodput needs --slo"),
        (("echo", "--share", "0"), "must be above 0"),
        (("echo", "--time-budget", "10"), "'10' is not a valid duration: it needs a unit, such as 10s or 10ms"),
        (("echo", "--time-budget", "2s"), "--time-budget 2s is too short: the least is 6 measurements of 1s"),
    ],
)
def test_wrong_flags(arguments: tuple[str, ...], message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "conch", "tune", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(("flag", "text"), [("--help", "--max-p99 TIME"), ("--list-knobs", "instance_group.count")])
def test_help(flag: str, text: str) -> None:
    done = subprocess.run([sys.executable, "-m", "conch", "tune", flag], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert text in done.stdout


def test_what_answers_is_not_an_inference_server(conch: ConchProcess, state: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "conch", "tune", "echo", f"--url=http://127.0.0.1:{conch.ports['metrics']}",
         f"--state-dir={state}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("conch tune: ")


def test_memory_is_a_constraint(conch: ConchProcess, state: Path) -> None:
    run = TuneRun(conch, state, "echo", "--knob", "instances=1,2", "--max-memory", "1MB")
    assert run.wait() == 0, run.text
    assert "no configuration that was measured meets the constraints" in run.text


def test_figures_that_no_source_has_are_refused(conch: ConchProcess, state: Path) -> None:
    run = TuneRun(conch, state, "echo", "--knob", "instances=1,2", "--minimize", "gpu_memory")
    assert run.wait() == 1
    assert "no figures for gpu_memory" in run.text
