"""Threads of ONNX models: the rule, and what is kept. Times are what a measurement could have found."""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from conch.server.backends.onnxruntime.thread_choice import ThreadChoice, ThreadChoices, choose, measure

DENSENET = {(1, 2): 0.024, (1, 1): 0.031, (2, 1): 0.032}


@pytest.mark.parametrize(
    ("times", "threads", "choice"),
    [
        (DENSENET, 2, ThreadChoice(2, 2, 1, patience=0.25)),
        # Threads gain little: one is enough, also for each of two runs.
        ({(1, 2): 0.030, (1, 1): 0.031, (2, 1): 0.032}, 2, ThreadChoice(1, 2, 1, patience=0.031)),
        # Concurrent runs gain nothing.
        ({(1, 2): 0.016, (1, 1): 0.031, (2, 1): 0.032}, 2, ThreadChoice(2)),
        # As short as the hand-over between threads.
        ({(1, 2): 0.00014, (1, 1): 0.00011, (2, 1): 0.00011}, 2, ThreadChoice(1)),
        # Others had the cores.
        (DENSENET | {(1, 2): inf}, 2, ThreadChoice(2, 2, 1, patience=0.255)),
        ({(1, 2): inf, (1, 1): 0.00011, (2, 1): 0.00011}, 2, ThreadChoice(1)),
        # Few threads each are as good as one each, and lanes pay from three requests on.
        (
            {(1, 16): 0.008, (1, 1): 0.031, (4, 4): 0.021, (16, 1): 0.084},
            16,
            ThreadChoice(16, 4, 4, break_even=3, patience=0.619),
        ),
    ],
)
def test_the_rule(times: dict[tuple[int, int], float], threads: int, choice: ThreadChoice) -> None:
    chosen = choose(times, threads)
    assert replace(chosen, patience=round(chosen.patience, 3)) == choice


def test_a_slow_model_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conch.server.backends.onnxruntime.thread_choice._MAX_RUN_S", -1.0)
    assert measure(lambda _: lambda: None, 2) is None


class Sessions:
    """Opens runs that take no time, and counts."""

    def __init__(self) -> None:
        self.opened: list[int] = []

    def __call__(self, threads: int) -> Callable[[], None]:
        self.opened.append(threads)
        return lambda: None


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"graph")
    return path


def test_a_choice_is_measured_once(model: Path, tmp_path: Path) -> None:
    choices, sessions = ThreadChoices(tmp_path / "kept"), Sessions()
    first = choices.get(model, "options", 2, sessions)
    assert sessions.opened == [2, 1]
    assert choices.get(model, "options", 2, sessions) == first
    assert ThreadChoices(tmp_path / "kept").get(model, "options", 2, sessions) == first
    assert sessions.opened == [2, 1]


@pytest.mark.parametrize("kept", ["", "{}", "[1]", '{"alone": 3}', '{"alone": 1, "lanes": 9}', '{"alone": "x"}'])
def test_what_was_kept_is_checked(model: Path, tmp_path: Path, kept: str) -> None:
    choices = ThreadChoices(tmp_path / "kept")
    choices._write("key", ThreadChoice(2))
    assert choices._read("key", 2) == ThreadChoice(2)
    choices._file("key").write_text(kept)
    assert choices._read("key", 2) is None


def test_another_model_is_measured(model: Path, tmp_path: Path) -> None:
    choices, sessions = ThreadChoices(tmp_path), Sessions()
    choices.get(model, "options", 2, sessions)
    model.write_bytes(b"another graph")
    choices.get(model, "options", 2, sessions)
    choices.get(model, "other options", 2, sessions)
    assert sessions.opened == [2, 1] * 3


def test_a_folder_that_cannot_be_written_costs_only_time(model: Path) -> None:
    assert ThreadChoices(model / "below a file").get(model, "options", 2, Sessions()) is not None
