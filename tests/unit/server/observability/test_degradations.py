"""Degradations of a server: what is shown, logged once, forgotten, and refused by --strict."""

import logging

import pytest

from conch.base.errors import ConfigError
from conch.domain.degradations import Degradation, reasons
from conch.domain.exposition import render
from conch.server.observability import degradations as module
from conch.server.observability.degradations import Degradations, LoadReport, table


def shown(degradations: Degradations) -> list[str]:
    return [line for line in render(degradations.families()).decode().splitlines() if not line.startswith("#")]


def test_series_of_server_and_models_in_the_order_of_the_registry() -> None:
    model = [Degradation("setting_ignored", text, "m") for text in ("a has no effect", "b has no effect")]
    degradations = Degradations(models=lambda: model, probes={"swapped": lambda: "70 MiB"})
    degradations.report("flag_ignored", "--x has no effect")
    degradations.check_start()
    assert shown(degradations) == [
        'conch_degraded{model="m",reason="setting_ignored"} 1',
        'conch_degraded{reason="flag_ignored"} 1',
        'conch_degraded{reason="swapped"} 1',
    ]
    model.clear()
    assert len(shown(degradations)) == 2


def test_a_condition_is_logged_when_it_begins_and_gone_when_it_is_cured(caplog: pytest.LogCaptureFixture) -> None:
    state = ""
    degradations = Degradations(probes={"traces_dropped": lambda: state})
    degradations.check_start()
    for state in ("the queue is full", "the queue is full", ""):
        degradations.sample()
        assert len(shown(degradations)) == bool(state)
    assert [record.getMessage() for record in caplog.records] == ["the queue is full"]


def test_an_event_is_shown_for_some_time_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now_s)
    degradations = Degradations()
    for _ in range(3):
        degradations.note("process_restarted", "a process exited", "m")
    assert len(caplog.records) == 1
    now_s += module.EVENT_S - 1
    degradations.sample()
    assert shown(degradations) == ['conch_degraded{model="m",reason="process_restarted"} 1']
    now_s += 2
    degradations.sample()
    assert shown(degradations) == []


@pytest.mark.parametrize("strict", [{"true"}, {"kind_gpu_on_cpu", "cache_off"}])
def test_strict_refuses_a_load_with_the_cure(strict: set[str]) -> None:
    with pytest.raises(
        ConfigError, match=r"it runs on the CPU; install the driver .* set KIND_CPU .refused by --strict"
    ):
        LoadReport("m", strict)("kind_gpu_on_cpu", "it runs on the CPU")


def test_other_reasons_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    report = LoadReport("m", {"cache_off"})
    for _ in range(2):
        report("setting_ignored", "a has no effect")
    report("setting_ignored", "b has no effect")
    assert [degradation.detail for degradation in report.degradations] == ["a has no effect", "b has no effect"]
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, "a has no effect"),
        (logging.WARNING, "b has no effect"),
    ]


def test_strict_refuses_a_start_with_all_causes_but_no_running_condition() -> None:
    probes = {"swapped": lambda: "70 MiB are swapped out", "one_core": lambda: "1 core"}
    degradations = Degradations({"true"}, probes=probes)
    degradations.report("flag_ignored", "--x has no effect")
    with pytest.raises(ConfigError) as raised:
        degradations.check_start()
    assert raised.value.message == (
        "refused by --strict: --x has no effect; remove it (reason flag_ignored); "
        "1 core; give the server at least 2 cores (reason one_core)"
    )
    Degradations({"flag_ignored"}, probes=probes).check_start()


def test_table_wraps_and_is_bounded() -> None:
    rows = [Degradation("setting_ignored", f"{number} " + "word " * 40, f"m{number}") for number in range(50)]
    lines = table(rows).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "setting_ignored (m0)"
    assert f"  {reasons()['setting_ignored'].costs}" in lines
    assert lines[-1] == "and 10 more, see conch_degraded in /metrics"
