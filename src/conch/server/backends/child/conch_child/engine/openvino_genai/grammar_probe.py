"""Compile structured output specifications for `grammars.py`, in a separate process that may hang or crash.

Writes the JSON string "" when it is ready. Reads lines like ["regex", "["] and answers each with a JSON string: the
error, "" if it compiles. It runs a minimal
model in an OpenVINO GenAI pipeline, which it recreates after an error, as that leaves the pipeline unusable.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai
from gguf import GGUFWriter

from ...ipc import prctl
from .sampling import structure_of

# Memory for one compilation; exceeding it ends only this process.
_MAX_MEMORY_BYTES = 2 << 30
_WIDTH = 32
_END = "<|end|>"
# OpenVINO computes in bf16 by default on processors with AMX, where it crashes with a model as small as this one.
_PROPERTIES = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}


def main() -> None:
    """Answer each line of standard input with one line on standard output."""
    prctl.die_with_parent()
    resource.setrlimit(resource.RLIMIT_DATA, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipeline = _pipeline()
    print(json.dumps(""), flush=True)
    for line in sys.stdin:
        error = _compile(pipeline, *json.loads(line))
        print(json.dumps(error), flush=True)
        if error:
            pipeline = _pipeline()


def _compile(pipeline: Any, kind: str, value: str) -> str:
    """Return the compilation error of a structure, "" for none."""
    try:
        configuration = genai.GenerationConfig()
        configuration.max_new_tokens = 2
        configuration.structured_output_config = structure_of(kind, value)
        handle = pipeline.add_request(0, openvino.Tensor(np.array([[1]], np.int64)), configuration)
        while pipeline.has_non_finished_requests():
            pipeline.step()
        del handle  # deleting it earlier would cancel the request
    except (RuntimeError, ValueError) as error:
        return _reason(str(error))
    return ""


def _reason(text: str) -> str:
    """Return the library's error without the position in its sources."""
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "no reason given")
    return re.sub(r"^\[[\d:]+\] \S+:\d+: (Check failed: .* is false: )?", "", last).strip()


def _pipeline() -> Any:
    """Make a pipeline. Its model is a file only meanwhile, because this process may be killed at any later time."""
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = 8
    with tempfile.TemporaryDirectory() as folder:
        model = _write(Path(folder, "model.gguf"))
        return genai.ContinuousBatchingPipeline(str(model), scheduler, "CPU", _PROPERTIES)


def _write(path: Path) -> Path:
    """Write a GGUF model of one layer with zero weights whose tokens are bytes."""
    writer = GGUFWriter(path, "qwen2")
    writer.add_context_length(64)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_file_type(1)
    tokens = [*_characters(), _END]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 1) + [3])
    writer.add_token_merges(["a b"])
    for add in (writer.add_bos_token_id, writer.add_pad_token_id, writer.add_eos_token_id):
        add(len(tokens) - 1)
    writer.add_add_bos_token(False)
    for name, shape in _weights(len(tokens)):
        kind = np.float32 if len(shape) == 1 else np.float16
        writer.add_tensor(name, np.zeros(shape, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _characters() -> list[str]:
    """Return GPT-2's printable character for each of the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [characters[byte] for byte in range(256)]


def _weights(vocabulary: int) -> list[tuple[str, tuple[int, ...]]]:
    embedding, square, vector = (vocabulary, _WIDTH), (_WIDTH, _WIDTH), (_WIDTH,)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": embedding, "output": embedding, "output_norm": vector}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}"] = square
    shapes |= {"blk.0.attn_norm": vector, "blk.0.ffn_norm": vector}
    biases: list[tuple[str, tuple[int, ...]]] = [(f"blk.0.attn_{name}.bias", vector) for name in "qkv"]
    return [*((f"{name}.weight", shape) for name, shape in shapes.items()), *biases]


if __name__ == "__main__":
    main()
