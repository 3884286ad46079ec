"""The shapes of well-known models, to the parameter."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import InvalidRequest
from conch.measure.advise.checkpoint import Checkpoint
from conch.measure.advise.config_json import read_shape
from conch.measure.advise.engine_plan import GIB, Gpus, Workload, plan
from tests.unit.domain.llm.planning.configs import KNOWN, LLAMA_3_8B, MIXTRAL_8X7B


@pytest.mark.parametrize(("config", "parameters", "kib"), [case[1:] for case in KNOWN], ids=[case[0] for case in KNOWN])
def test_parameters_and_cache_are_those_published(config: dict[str, Any], parameters: int, kib: float) -> None:
    shape = read_shape(config)
    assert shape.parameters == parameters
    assert shape.kv_bytes_per_token() / 1024 == kib


def test_a_model_that_sees_is_planned_by_its_text_part() -> None:
    seeing = {"model_type": "llava", "text_config": LLAMA_3_8B, "vision_config": {}}
    assert read_shape(seeing) == read_shape(LLAMA_3_8B)


@given(st.sampled_from(KNOWN), st.data())
def test_no_number_is_met_by_an_exception(known: tuple[str, dict[str, Any], int, float], data: st.DataObject) -> None:
    config = known[1]
    values = st.none() | st.integers(-2, 300) | st.floats() | st.text(max_size=2) | st.lists(st.integers(), max_size=2)
    name = data.draw(st.sampled_from(sorted(config.keys() - {"model_type"})))
    try:
        shape = read_shape({**config, name: data.draw(values)})
    except InvalidRequest:
        return
    model = Checkpoint(Path(), shape, 2, 2, "")
    placement = plan(model, Gpus(8, 80 * GIB, 2), Workload(length=4096))
    assert (placement.best is None) == all(split.problem for split in placement.splits)


def test_a_gpu_keeps_a_head_at_least() -> None:
    shape = read_shape(LLAMA_3_8B)
    widths = [shape.kv_width_per_gpu(tensor) for tensor in (1, 2, 8, 16)]
    assert widths == [2048, 1024, 256, 256]


def test_a_latent_vector_is_kept_by_every_gpu() -> None:
    shape = read_shape(KNOWN[-1][1])
    assert shape.kv_width_per_gpu(8) == shape.kv_width_per_gpu(1) == 576


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "rwkv"}, r"model_type 'rwkv' is not supported .* supported: deepseek_v2"),
        ({}, "model_type '' is not supported"),
        ({"model_type": "llama", "hidden_size": 64}, "'num_attention_heads' is missing"),
        ({**LLAMA_3_8B, "num_attention_heads": 0}, "invalid for model_type"),
        ({**LLAMA_3_8B, "hidden_size": 4096.5}, "hidden_size is 4096.5"),
        ({**LLAMA_3_8B, "hidden_size": 31}, "the width of its heads is 0"),
        ({**LLAMA_3_8B, "vocab_size": -1}, "vocab_size is -1"),
        ({**LLAMA_3_8B, "num_hidden_layers": 10**8}, "more than 10000 layers"),
        ({**MIXTRAL_8X7B, "num_local_experts": "many"}, "invalid for model_type"),
    ],
)
def test_invalid_configurations_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_shape(config)
