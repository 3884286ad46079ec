"""Models that take as long as recorded ones did."""

import json
from pathlib import Path

import numpy as np
import pytest

from conch.base.errors import InvalidRequest
from conch.domain.events.log import EventLog
from conch.measure.incidents.stand_in import (
    StandInChange,
    executions,
    refusal,
    service_times,
    write_clock_shift,
    write_stand_ins,
)

CONFIG = {
    "name": "m",
    "backend": "onnxruntime",
    "max_batch_size": 8,
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}],
    "instance_group": [{"count": 1, "kind": "KIND_GPU", "gpus": [0]}, {"count": 2}],
    "dynamic_batching": {"max_queue_delay_microseconds": 100, "preferred_batch_size": [4]},
    "optimization": {"cuda": {"graphs": True}},
    "parameters": {"k": {"string_value": "v"}},
}


def log_of(*executions: tuple[int, int]) -> EventLog:
    """Return a log with executions of (batch size, ns), the last one first."""
    rows = [
        {"number": number, "model": "m", "size": size, "started": 1000 * number, "input_done": 1000 * number + 5,
         "infer_done": 1000 * number + 5 + ns, "released": 1000 * number + 900_000}
        for number, (size, ns) in enumerate(executions, 1)
    ]  # fmt: skip
    return EventLog.of_rows({"batches": [{"number": 99, "model": "other", "size": 1}, *reversed(rows)]})


def test_times_are_by_batch_size_in_the_order_of_execution() -> None:
    assert service_times(log_of((1, 30), (4, 70), (1, 20)), "m") == {1: [30, 20], 4: [70]}
    assert service_times(log_of(), "gone") == {}


def test_executions_are_those_of_clients_requests() -> None:
    tables: dict[str, list[dict[str, int | str]]] = {
        "requests": [
            {"number": 1, "model": "outer"},
            {"number": 2, "model": "inner", "parent": 1},
            {"number": 3, "model": "m", "parent": 2, "batch": 8},
            {"number": 4, "model": "m", "batch": 8},
            {"number": 5, "model": "m", "batch": 9},
            {"number": 6, "model": "m"},
        ],
        "batches": [
            {"number": 9, "model": "m", "size": 1, "started": 30, "released": 40},
            {"number": 8, "model": "m", "size": 2, "started": 10, "input_done": 11, "infer_done": 19, "released": 20},
        ],
    }
    assert executions(EventLog.of_rows(tables), "m").tolist() == [[1, 11, 19], [4, 11, 19], [5, 30, 40]]


def test_only_a_stand_in_of_the_recorded_world_has_its_executions(tmp_path: Path) -> None:
    log = log_of((1, 30))
    for name, change in (("same", StandInChange()), ("faster", StandInChange(speed=2)), ("more", StandInChange(3))):
        write_stand_ins(tmp_path / name, log, {"m": CONFIG}, ["m"], change)
        write_clock_shift(tmp_path / name, -5)
    assert [path.parents[2].name for path in tmp_path.glob("*/m/1/executions.npy")] == ["same"]
    assert [path.parents[2].name for path in tmp_path.glob("*/m/1/clock_shift")] == ["same"]
    assert (tmp_path / "same/m/1/clock_shift").read_text() == "-5"
    assert np.load(tmp_path / "same/m/1/executions.npy").shape == (0, 3)  # the log has no request


def test_a_stand_in_has_the_scheduling_of_the_model_and_no_files(tmp_path: Path) -> None:
    write_stand_ins(tmp_path, log_of((1, 30)), {"m": CONFIG}, ["m"], StandInChange())
    text = (tmp_path / "m" / "config.pbtxt").read_text()
    assert 'backend: "python"' in text
    assert "count: 3" in text
    assert "max_queue_delay_microseconds: 100" in text
    assert "preferred_batch_size: 4" in text
    assert "gpus" not in text
    assert "cuda" not in text
    assert json.loads((tmp_path / "m/1/service_times.json").read_text()) == {"1": [30]}
    assert "class TritonPythonModel" in (tmp_path / "m/1/model.py").read_text()


def test_the_world_can_be_changed(tmp_path: Path) -> None:
    change = StandInChange(instances=5, max_batch_size=2, delay_us=7)
    write_stand_ins(tmp_path, log_of((1, 30)), {"m": CONFIG}, ["m"], change)
    text = (tmp_path / "m" / "config.pbtxt").read_text()
    assert "count: 5" in text
    assert "max_batch_size: 2" in text
    assert "max_queue_delay_microseconds: 7" in text


def test_a_damaged_configuration_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="damaged"):
        write_stand_ins(tmp_path, log_of((1, 30)), {"m": {**CONFIG, "input": [{"name": 3}]}}, ["m"], StandInChange())


def test_a_name_stays_inside_the_repository(tmp_path: Path) -> None:
    log = log_of((1, 30))
    log = EventLog(names=("", "other", "../m"), tables=log.tables)
    with pytest.raises(InvalidRequest, match="not a valid name"):
        write_stand_ins(tmp_path / "models", log, {"../m": {**CONFIG, "name": "../m"}}, ["../m"], StandInChange())


ENSEMBLE = {"name": "e", "ensemble_scheduling": {"step": [{"model_name": "m"}]}}


def test_an_ensemble_has_stand_ins_of_its_steps(tmp_path: Path) -> None:
    write_stand_ins(tmp_path, log_of((1, 30)), {"e": ENSEMBLE, "m": CONFIG}, ["e"], StandInChange())
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["e", "m"]
    assert "backend" not in (tmp_path / "e" / "config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("model", "configs", "why"),
    [
        ("m", {"m": CONFIG}, ""),
        ("m", {}, "the bundle does not have the configuration of model 'm'"),
        ("gone", {"gone": CONFIG}, "the bundle has no execution of model 'gone'"),
        ("e", {"e": ENSEMBLE, "m": CONFIG}, ""),
        ("e", {"e": ENSEMBLE}, "the bundle does not have the configuration of model 'm'"),
    ],
)
def test_why_a_model_has_no_stand_in(model: str, configs: dict[str, dict[str, object]], why: str) -> None:
    assert refusal(log_of((1, 30)), model, configs) == why


def test_an_ensemble_of_itself_has_no_stand_in_without_executions() -> None:
    ensemble = {"name": "e", "ensemble_scheduling": {"step": [{"model_name": "e"}, {"model_name": "m"}]}}
    assert refusal(log_of(), "e", {"e": ensemble, "m": CONFIG}) == "the bundle has no execution of model 'm'"


@pytest.mark.parametrize("damage", [{"instance_group": [{"count": "x"}]}, {"ensemble_scheduling": [1]}, {"name": 5}])
def test_a_damaged_configuration_has_no_stand_in(damage: dict[str, object]) -> None:
    assert refusal(log_of((1, 30)), "m", {"m": {**CONFIG, **damage}}).startswith("the bundle is damaged: ")
