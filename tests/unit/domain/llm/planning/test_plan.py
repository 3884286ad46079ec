"""Which division fits which GPUs."""

import json
from pathlib import Path
from typing import Any

import pytest

from conch.measure.advise.checkpoint import Checkpoint, read_checkpoint
from conch.measure.advise.engine_plan import GIB, Gpus, Plan, Split, Workload, plan
from tests.unit.domain.llm.planning.configs import GEMMA_2B, KNOWN, LLAMA_3_8B, LLAMA_3_70B, MIXTRAL_8X7B, QWEN_05B


def _model(directory: Path, config: dict[str, Any]) -> Checkpoint:
    (directory / "config.json").write_text(json.dumps(config))
    return read_checkpoint(directory)


def _split(placement: Plan, tensor: int, pipeline: int) -> Split:
    (split,) = [split for split in placement.splits if (split.tensor, split.pipeline) == (tensor, pipeline)]
    return split


def test_a_small_model_takes_one_gpu_of_many(tmp_path: Path) -> None:
    placement = plan(_model(tmp_path, LLAMA_3_8B), Gpus(8, 80 * GIB), Workload(length=8192))
    assert placement.best is not None
    assert (placement.best.tensor, placement.best.pipeline) == (1, 1)
    assert "the GPUs hold 8 such models" in placement.reason


def test_a_large_model_takes_as_many_as_it_must(tmp_path: Path) -> None:
    model = _model(tmp_path, LLAMA_3_70B)
    placement = plan(model, Gpus(8, 80 * GIB), Workload(length=8192, concurrency=32))
    assert placement.best is not None
    assert (placement.best.tensor, placement.best.pipeline) == (4, 1)
    assert _split(placement, 1, 1).problem.startswith("weights 131.4 GiB and reserve")
    assert _split(placement, 2, 1).problem == "2 sequences of 8192 tokens fit, not 32"
    # As many GPUs as TP 4 × PP 1; not taken, but possible.
    assert not _split(placement, 1, 4).problem


def test_weights_and_cache_are_divided(tmp_path: Path) -> None:
    model = _model(tmp_path, LLAMA_3_70B)
    placement = plan(model, Gpus(8, 80 * GIB), Workload(length=8192))
    whole = model.weight_bytes
    for split in placement.splits:
        # The norms, which every GPU has, are less than a thousandth.
        if split.pipeline == 1:
            assert split.weights == pytest.approx(whole / split.tensor, rel=1e-3)
        assert split.weights >= whole / split.gpus
        assert split.kv_per_token == 320 * 1024 / split.gpus
        assert split.tokens == max(0, split.cache) // split.kv_per_token or split.pipeline > 1


def test_smaller_numbers_in_the_cache_make_room(tmp_path: Path) -> None:
    model = _model(tmp_path, LLAMA_3_8B)
    usual, small = (plan(model, Gpus(1, 24 * GIB), Workload(length=8192, kv_bytes=size)).splits[0] for size in (2, 1))
    assert small.tokens == pytest.approx(2 * usual.tokens, abs=1)


@pytest.mark.parametrize(
    ("config", "gpus", "tensor", "pipeline", "problem"),
    [
        (QWEN_05B, 4, 4, 1, "14 attention heads are not divisible by TP 4"),
        (LLAMA_3_8B, 3, 3, 1, "32 attention heads are not divisible by TP 3"),
        (
            {**LLAMA_3_8B, "num_key_value_heads": 6, "num_attention_heads": 48, "head_dim": 128},
            4,
            4,
            1,
            "6 key-value heads",
        ),
        ({**LLAMA_3_8B, "intermediate_size": 14338}, 4, 4, 1, "the feed-forward width 14338 is not divisible by TP 4"),
        ({**QWEN_05B, "num_hidden_layers": 2}, 4, 1, 4, "2 layers are fewer than PP 4"),
    ],
)
def test_indivisible_splits_have_a_reason(
    tmp_path: Path, config: dict[str, Any], gpus: int, tensor: int, pipeline: int, problem: str
) -> None:
    placement = plan(_model(tmp_path, config), Gpus(gpus, 80 * GIB), Workload(length=1024))
    assert problem in _split(placement, tensor, pipeline).problem


def test_a_head_may_be_on_several_gpus(tmp_path: Path) -> None:
    placement = plan(_model(tmp_path, GEMMA_2B), Gpus(8, 24 * GIB), Workload(length=1024))
    assert not _split(placement, 8, 1).problem
    assert _split(placement, 8, 1).kv_per_token == _split(placement, 1, 1).kv_per_token


def test_all_experts_count(tmp_path: Path) -> None:
    placement = plan(_model(tmp_path, MIXTRAL_8X7B), Gpus(2, 80 * GIB), Workload(length=4096))
    assert _split(placement, 1, 1).problem.startswith("weights 87.0 GiB")
    assert placement.best is not None
    assert placement.best.tensor == 2


def test_tensor_parallelism_stays_in_a_machine(tmp_path: Path) -> None:
    placement = plan(_model(tmp_path, KNOWN[-1][1]), Gpus(8, 141 * GIB, nodes=2), Workload(length=4096))
    assert max(split.tensor for split in placement.splits) == 8
    assert placement.best is not None
    assert (placement.best.tensor, placement.best.pipeline) == (8, 2)


def test_the_reason_without_a_fit_suggests_gpus(tmp_path: Path) -> None:
    model = _model(tmp_path, LLAMA_3_70B)
    placement = plan(model, Gpus(2, 24 * GIB), Workload(length=8192))
    assert placement.best is None
    assert "nothing fits on 2 GPUs of 24.0 GiB; nearest is TP 2 × PP 1: weights 65.7 GiB" in placement.reason
    assert placement.reason.endswith("8 such GPUs suffice, with TP 8 × PP 1")
    enough = plan(model, Gpus(8, 24 * GIB), Workload(length=8192)).best
    assert enough is not None
    assert enough.gpus == 8


def test_where_no_number_would_do_none_is_named(tmp_path: Path) -> None:
    placement = plan(_model(tmp_path, LLAMA_3_70B), Gpus(1, GIB), Workload(length=8192))
    assert placement.best is None
    assert "suffice" not in placement.reason


def test_stages_of_a_pipeline_differ_by_a_layer_at_most(tmp_path: Path) -> None:
    model = _model(tmp_path, {**LLAMA_3_8B, "num_hidden_layers": 31})
    placement = plan(model, Gpus(4, 80 * GIB), Workload(length=1024))
    assert _split(placement, 1, 4).kv_per_token == 8 * 4 * 1024
