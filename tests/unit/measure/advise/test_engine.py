"""`conch engine plan`: command line and output."""

import json
from pathlib import Path

import pytest

from conch.measure.advise.engine import engine
from tests.unit.domain.llm.planning.configs import LLAMA_3_8B, LLAMA_3_70B


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_70B))
    return str(tmp_path)


def test_it_prints_the_division_and_the_lines_for_both_engines(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine(["plan", model, "--gpus", "8x80GiB", "--concurrency", "32"]) == 0
    printed = capsys.readouterr().out
    assert "llama: 70.55 billion parameters, 131.4 GiB" in printed
    assert "KV cache 320 KiB per token" in printed
    assert "Best: TP 4 × PP 1, the fewest GPUs that hold 32 sequences of 8192 tokens" in printed
    assert "Resources: 4 GPUs (nvidia.com/gpu: 4)." in printed
    documents = [json.loads("{" + part.partition("\n\n")[0]) for part in printed.split("\n{")[1:]]
    assert [document["tensor_parallel_size"] for document in documents] == [4, 4]
    assert [document.get("max_model_len") or document["max_seq_len"] for document in documents] == [8192, 8192]


def test_json_output(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--gpus", "8x24GiB", "--nodes", "2", "--max-model-len", "4096", "--kv-cache-dtype", "fp8", "--json"]
    assert engine(["plan", model, *arguments, "--concurrency", "100"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["model"]["parameters"] == 70_553_706_496
    assert document["model"]["kv_bytes_per_token"] == 160 * 1024
    best = document["best"]
    assert best["sequences"] >= 100
    assert best in [split for split in document["splits"] if split["fits"]]
    assert document["resources"] == {"nodes": 2, "gpus_per_node": 8}
    assert document["model_json"]["vllm"]["kv_cache_dtype"] == "fp8"
    assert document["model_json"]["tensorrtllm"]["kv_cache_config"]["dtype"] == "fp8"


def test_the_status_is_1_with_the_reason_where_nothing_fits(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine(["plan", model, "--gpus", "2x24GiB"]) == 1
    printed = capsys.readouterr().out
    assert "nothing fits on 2 GPUs of 24.0 GiB" in printed
    assert "model.json" not in printed
    assert engine(["plan", model, "--gpus", "2x24GiB", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["best"] is None
    assert "8 such GPUs suffice" in document["reason"]


def test_quantization_makes_it_fit(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine(["plan", model, "--gpus", "1x80GiB"]) == 1
    assert engine(["plan", model, "--gpus", "1x80GiB", "--quantization", "awq"]) == 0
    assert '"quantization": "awq"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus", "many"], "'many' is not valid for GPUs"),
        (["--gpus", "80GiB", "--max-model-len", "9000"], "--max-model-len 9000 is above the model's context of 8192"),
    ],
)
def test_invalid_arguments(model: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine(["plan", model, *arguments]) == 1
    assert said in capsys.readouterr().err


def test_a_missing_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine(["plan", str(tmp_path / "none"), "--gpus", "80GiB"]) == 1
    assert "expected the folder of a checkpoint" in capsys.readouterr().err


def test_a_model_without_a_context_requires_a_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    endless = {name: value for name, value in LLAMA_3_8B.items() if name != "max_position_embeddings"}
    (tmp_path / "config.json").write_text(json.dumps(endless))
    assert engine(["plan", str(tmp_path), "--gpus", "80GiB"]) == 1
    assert "give --max-model-len" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--nodes", "0"], ["--concurrency", "x"], ["--gpu-memory-utilization", "1.5"]])
def test_invalid_numbers_are_refused(model: str, arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        engine(["plan", model, "--gpus", "80GiB", *arguments])
