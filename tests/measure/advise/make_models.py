"""The models of the worked cases: configurations of published checkpoints, and files with the right sizes."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.unit.domain.llm.planning.configs import KNOWN, LLAMA_3_8B, LLAMA_3_70B, QWEN_05B, config

EXAMPLES = Path(__file__).parents[3] / "examples" / "models"
_LLAMA_2_7B = KNOWN[0][1]
_MISTRAL_7B = config(4096, 14336, 32, 32, 32000, 8, model_type="mistral", max_position_embeddings=32768)
_QWEN_3B = config(2048, 11008, 16, 36, 151936, 2, model_type="qwen2", tie_word_embeddings=True)
_CHECKPOINTS = {
    "qwen2.5-3b-instruct": {**_QWEN_3B, "max_position_embeddings": 32768},
    "llama-2-7b-chat": _LLAMA_2_7B,
    "mistral-7b-instruct": _MISTRAL_7B,
    "llama-3-8b": LLAMA_3_8B,
    "llama-3-70b": LLAMA_3_70B,
    "qwen2.5-0.5b": QWEN_05B,
}


def make_models(folder: Path) -> None:
    """Write all models that the cases name."""
    for name, document in _CHECKPOINTS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(document))
    write_onnx(folder / "densenet.onnx", 224)
    write_onnx(folder / "classifier.onnx", 32)
    write_gguf(folder / "qwen2.5-7b-q4.gguf")
    pipeline = folder / "pipeline"
    for name in ("detect", "preprocess", "detector", "postprocess"):
        shutil.copytree(EXAMPLES / name, pipeline / name)
    mixed = folder / "mixed"
    for name in ("densenet_onnx", "simple_echo", "chat"):
        shutil.copytree(EXAMPLES / name, mixed / name)


def write_onnx(path: Path, side: int) -> None:
    """Write a model whose batch is variable, with a megabyte of weights."""
    weights = numpy_helper.from_array(np.zeros((3, 87382), np.float32), "w")
    mean = helper.make_node("ReduceMean", ["image"], ["pooled"], axes=[2, 3], keepdims=0)
    graph = helper.make_graph(
        [mean, helper.make_node("MatMul", ["pooled", "w"], ["scores"])],
        "classifier",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, side, side])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 87382])],
        initializer=[weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def write_gguf(path: Path, size: int = 4_500_000_000) -> None:
    """Write the header of a model of 7 billion parameters in 4 bits, and a hole in place of its weights."""
    numbers = {
        "block_count": 28,
        "context_length": 4096,
        "embedding_length": 3584,
        "attention.head_count": 28,
        "attention.head_count_kv": 4,
    }

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    metadata = text("general.architecture") + struct.pack("<I", 8) + text("qwen2")
    for key, value in numbers.items():
        metadata += text(f"qwen2.{key}") + struct.pack("<II", 4, value)
    tensor = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 256, 256, 12, 0)
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 1 + len(numbers))
    with path.open("wb") as file:
        file.write(header + metadata + tensor)
        file.truncate(size)
