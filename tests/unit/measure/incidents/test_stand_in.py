"""Models that take as long as recorded ones did."""

import json
from pathlib import Path

import pytest

from conch.base.errors import InvalidRequest
from conch.domain.events.log import EventLog
from conch.measure.incidents.stand_in import StandInChange, refusal, service_times, write_stand_ins

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
