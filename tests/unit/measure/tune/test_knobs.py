from typing import Any

import pytest

from conch.measure.tune.knobs import KnobError, current_settings, dimension, parse_values, with_settings
from conch.measure.tune.space import Value


def _onnx(**more: Any) -> dict[str, Any]:
    return {
        "name": "m",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "max_batch_size": 8,
        "instance_group": [{"kind": "KIND_CPU", "count": 1}],
        "dynamic_batching": {"preferred_batch_size": [4, 8], "max_queue_delay_microseconds": 100},
        "parameters": {},
        **more,
    }


def test_each_knob_writes_its_fields() -> None:
    settings: dict[str, Value] = {"instances": 3, "threads": 2, "max_batch_size": 4, "queue_delay_us": 500}
    changed = with_settings(_onnx(), settings)
    assert changed["instance_group"] == [{"kind": "KIND_CPU", "count": 3}]
    assert changed["parameters"] == {"intra_op_thread_count": {"string_value": "2"}}
    assert changed["max_batch_size"] == 4
    assert changed["dynamic_batching"] == {"preferred_batch_size": [4], "max_queue_delay_microseconds": 500}


def test_a_change_of_backend_moves_the_threads_to_its_parameter() -> None:
    before = _onnx(parameters={"intra_op_thread_count": {"string_value": "2"}})
    changed = with_settings(before, {"backend": "openvino", "precision": "bf16", "inter_op_threads": 2})
    assert changed["backend"] == "openvino"
    assert changed["platform"] == ""
    assert changed["default_model_filename"] == "model.onnx"
    expected = {"INFERENCE_NUM_THREADS": {"string_value": "2"}, "INFERENCE_PRECISION_HINT": {"string_value": "bf16"}}
    assert changed["parameters"] == expected


def test_settings_without_effect_lead_to_equal_configurations() -> None:
    assert with_settings(_onnx(), {"precision": "bf16"}) == _onnx()
    off: dict[str, Value] = {"queue_delay_us": "off"}
    assert with_settings(_onnx(), off | {"preferred_batch_sizes": (8,)}) == with_settings(_onnx(), off)


def test_the_current_values_are_read_back() -> None:
    names = ["instances", "threads", "max_batch_size", "queue_delay_us", "preferred_batch_sizes", "backend"]
    values = current_settings(_onnx(), names)
    assert values == {
        "instances": 1,
        "threads": 0,
        "max_batch_size": 8,
        "queue_delay_us": 100,
        "preferred_batch_sizes": (4, 8),
        "backend": "onnxruntime",
    }
    assert with_settings(_onnx(), {**values, "threads": None}) == _onnx()


def test_a_dimension_has_the_current_value() -> None:
    axis = dimension("queue_delay_us", _onnx(), cores=2)
    assert axis is not None
    assert axis.values == ("off", 0, 100, 500, 2000)


def test_ensembles_and_engines_have_no_instances_to_tune() -> None:
    assert dimension("instances", {"platform": "ensemble", "ensemble_scheduling": {"step": []}}, 2) is None
    assert dimension("instances", {"backend": "vllm"}, 2) is None


def test_any_field_is_a_knob() -> None:
    assert with_settings(_onnx(), {"field:optimization.graph.level": 1})["optimization"] == {"graph": {"level": 1}}
    axis = dimension("field:max_batch_size", _onnx(), 2, (2, 4))
    assert axis is not None
    assert axis.values == (2, 4, 8)


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("instances", "1:3,8", (1, 2, 3, 8)),
        ("queue_delay_us", "off,100", ("off", 100)),
        ("preferred_batch_sizes", "off,4+8", ((), (4, 8))),
        ("backend", "onnxruntime,openvino", ("onnxruntime", "openvino")),
        ("chunked_prefill", "true,false", (True, False)),
        ("kv_cache", "0.5,0.9", (0.5, 0.9)),
    ],
)
def test_values_of_flags(name: str, text: str, values: tuple[Value, ...]) -> None:
    assert parse_values(name, text) == values


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("instances", "two"),
        ("instances", "-1"),
        ("instances", "0:2"),
        ("instances", "4:1"),
        ("nothing", "1"),
        ("backend", ""),
    ],
)
def test_values_that_are_refused(name: str, text: str) -> None:
    with pytest.raises(KnobError, match=r"unknown knob|is not valid|at least 1|such as 1:4"):
        parse_values(name, text)


def test_values_of_a_field_are_json_where_they_can_be() -> None:
    assert parse_values("field:optimization.graph.level", "-1,0.5,fast,-1") == (-1, 0.5, "fast")
    assert parse_values("field:optimization.input_pinned_memory.enable", "true,false") == (True, False)
