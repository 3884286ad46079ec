"""How large weights are: by the files' own headers, by what is asked for, or by the configuration."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from conch.base.errors import InvalidRequest
from conch.measure.advise.checkpoint import read_checkpoint
from tests.unit.domain.llm.planning.configs import LLAMA_3_8B, QWEN_05B

_PARAMETERS = 494_032_768


def _write(directory: Path, config: dict[str, Any]) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _write_safetensors(path: Path, tensors: dict[str, int]) -> None:
    """Write a header for tensors (name → size in bytes), and their data as a hole of the file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(path, 8 + len(text) + end)


def test_the_configuration_is_used_without_files(tmp_path: Path) -> None:
    assert read_checkpoint(_write(tmp_path, QWEN_05B)).weight_bytes == 2 * _PARAMETERS
    assert read_checkpoint(tmp_path / "config.json").weight_bytes == 2 * _PARAMETERS
    _write(tmp_path, {**QWEN_05B, "torch_dtype": "float32"})
    assert read_checkpoint(tmp_path).weight_bytes == 4 * _PARAMETERS
    assert read_checkpoint(tmp_path, dtype_bytes=2).weight_bytes == 2 * _PARAMETERS


def test_files_say_how_large_they_are(tmp_path: Path) -> None:
    _write(tmp_path, LLAMA_3_8B)
    index = {"metadata": {"total_size": 9_000_000_000}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    model = read_checkpoint(tmp_path)
    assert model.weight_bytes == pytest.approx(9_000_000_000, abs=1)
    assert model.source == "its safetensors files"


def test_headers_are_added_up(tmp_path: Path) -> None:
    _write(tmp_path, QWEN_05B)
    _write_safetensors(tmp_path / "model-1.safetensors", {"a": 300_000_000, "b": 200_000_000})
    _write_safetensors(tmp_path / "model-2.safetensors", {"c": 100_000_000})
    assert read_checkpoint(tmp_path).weight_bytes == pytest.approx(600_000_000, abs=1)


def test_an_embedding_that_is_stored_twice_is_loaded_once(tmp_path: Path) -> None:
    _write(tmp_path, QWEN_05B)
    _write_safetensors(tmp_path / "model.safetensors", {"all": 2 * _PARAMETERS, "lm_head": 2 * 896 * 151936})
    assert read_checkpoint(tmp_path).weight_bytes == 2 * _PARAMETERS


def test_quantization_applies_to_matrices_only(tmp_path: Path) -> None:
    _write(tmp_path, QWEN_05B)
    others = 896 * 151936
    sizes = [read_checkpoint(tmp_path, quantization=name).weight_bytes for name in ("fp8", "awq")]
    assert sizes[0] == pytest.approx(_PARAMETERS + others, rel=1e-3)
    assert sizes[0] > sizes[1] > 2 * others


@pytest.mark.parametrize(
    ("stored", "bits"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4.25),
        ({"quant_method": "awq", "w_bit": 4, "group_size": 64}, 4.5),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4),
    ],
)
def test_the_quantization_of_a_checkpoint_is_used(tmp_path: Path, stored: dict[str, Any], bits: float) -> None:
    model = read_checkpoint(_write(tmp_path, {**QWEN_05B, "quantization_config": stored}))
    assert model.matrix_bytes * 8 == bits


@pytest.mark.parametrize("stored", [["fp8"], {"bits": "four"}, {"bits": [4]}])
def test_an_unknown_quantization_is_reported(tmp_path: Path, stored: Any) -> None:
    with pytest.raises(InvalidRequest, match="unknown quantization_config: "):
        read_checkpoint(_write(tmp_path, {**QWEN_05B, "quantization_config": stored}))


@pytest.mark.parametrize(
    ("content", "message"), [(None, "there is no '.*config.json'"), ("{", "cannot be read"), ("[]", "a JSON object")]
)
def test_folders_without_a_checkpoint_are_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InvalidRequest, match=message):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 16, struct.pack("<Q", 4) + b"{[1]", struct.pack("<Q", 8) + b'{"a": 1}']
)
def test_malformed_safetensors_are_reported(tmp_path: Path, data: bytes) -> None:
    _write(tmp_path, QWEN_05B)
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(InvalidRequest, match=r"model.safetensors' is not a safetensors file"):
        read_checkpoint(tmp_path)
