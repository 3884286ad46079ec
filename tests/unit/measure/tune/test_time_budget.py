"""Time budgets: what fits is planned before the run, and holds during it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conch.measure.tune import trials as trials_module
from conch.measure.tune import tuner as tuner_module
from conch.measure.tune.planning import BudgetTooShort, fit_to_budget, measurement_s
from conch.measure.tune.repository_client import RepositoryClient
from conch.measure.tune.space import Value
from conch.measure.tune.state.folder import StateFolder
from conch.measure.tune.state.session import ModelSession
from conch.measure.tune.trials import TrialMeter, TrialReading
from conch.measure.tune.tune_settings import SearchSettings, TrialSettings, TuneSettings
from conch.measure.tune.tuner import TuneContext, Tuner, TuneView

LOAD_S = 0.4


def settings_of(budget_s: float | None, **trial: Any) -> TuneSettings:
    return TuneSettings("m", trial=TrialSettings(**trial), search=SearchSettings(time_budget_s=budget_s))


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class SimulatedMeter(TrialMeter):
    """Takes the time that it announces, times a factor, on the clock."""

    def __init__(self, clock: Clock, settings: TrialSettings, factor: float) -> None:
        self.clock, self.settings, self.factor = clock, settings, factor
        self.count = 0

    def measure(self, load: Value, effort: float) -> TrialReading:
        self.count += 1
        self.clock.now += measurement_s(self.settings, effort) * self.factor
        return TrialReading({"throughput": 100.0 + self.count, "p99": 0.01})

    def expected_s(self, effort: float) -> float:
        return measurement_s(self.settings, effort)


class SimulatedClient:
    """Answers as a server with one model; each load takes time on the clock."""

    access = SimpleNamespace(url="http://127.0.0.1:1", is_local=False, api_key_file=None)  # without an event log

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def load(self, name: str, document: object = None) -> None:
        self.clock.now += LOAD_S

    def config(self, name: str) -> dict[str, object]:
        return {"name": name, "backend": "python", "max_batch_size": 8, "instance_group": [{"count": 1}]}

    def server(self) -> dict[str, object]:
        return {"name": "conch", "version": "1"}

    def check_explicit(self) -> None: ...

    def is_ready(self, name: str) -> bool:
        return True

    def statistics(self) -> dict[str, dict[str, float]]:
        return {}


class SilentView(TuneView):
    def say(self, text: str) -> None: ...

    def begin(self, *_: object) -> None: ...

    def end(self, *_: object, best: bool) -> None: ...


@pytest.mark.parametrize("factor", [1.0, 1.6])
@pytest.mark.parametrize("budget_s", [7.0, 10.0, 30.0, 100.0, 600.0])
def test_a_run_ends_within_one_measurement_of_its_budget(
    budget_s: float, factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    for module in (tuner_module, trials_module):
        monkeypatch.setattr(module, "time", clock)
    settings = fit_to_budget(settings_of(budget_s)).settings
    meter = SimulatedMeter(clock, settings.trial, factor)
    folder = StateFolder(tmp_path / "m")
    folder.create()
    client = cast("RepositoryClient", SimulatedClient(clock))
    session = cast("ModelSession", SimpleNamespace(protect=lambda *_: None, keep_watch=lambda: None))
    outcome = Tuner(settings, TuneContext(client, folder, meter, SilentView(), 4), session).run()
    assert clock.now - 1000.0 <= budget_s + meter.expected_s(1.0) * factor + LOAD_S
    assert meter.count == len(outcome.trials) >= 3
    if factor == 1.0:
        assert len(outcome.finalists) >= 2
        assert outcome.finalists[0].name == "current"


def test_without_a_budget_nothing_changes() -> None:
    settings = settings_of(None)
    assert fit_to_budget(settings).settings is settings
    assert fit_to_budget(settings).text == ""


def test_default_windows_are_shortened_and_chosen_ones_are_not() -> None:
    short = fit_to_budget(settings_of(10.0))
    assert (short.settings.trial.window_s, short.settings.trial.warm_up_s) == (0.5, 0.2)
    assert short.text.startswith("time budget 10s: about 9 measurements with windows of 0.5s (shortened): 3 of the")
    assert fit_to_budget(settings_of(600.0)).settings.trial == TrialSettings()
    chosen = settings_of(30.0, window_s=2.0)
    assert fit_to_budget(chosen).settings.trial == chosen.trial


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (settings_of(3.0), "the least is 6 measurements of 1s (3 loads on the current"),
        (settings_of(10.0, window_s=5.0, concurrency=(1,)), "the least is 4 measurements of 6.3s (1 load on"),
        (settings_of(10.0, window_s=5.0, concurrency=(1,)), "give at least 28s, fewer loads"),
    ],
)
def test_a_budget_without_room_for_a_comparison_is_refused(settings: TuneSettings, message: str) -> None:
    with pytest.raises(BudgetTooShort) as refused:
        fit_to_budget(settings)
    assert message in str(refused.value)


def test_what_is_refused_names_a_budget_that_is_accepted() -> None:
    settings = settings_of(3.0)
    with pytest.raises(BudgetTooShort, match="give at least 7s"):
        fit_to_budget(settings)
    assert fit_to_budget(replace(settings, search=SearchSettings(time_budget_s=7.0))).text
