"""The language model of `gguf_model.py` as a folder in OpenVINO's IR, and LoRA adapters for it.

    python -m tests.server.backends.engines.ir_model FOLDER

converts the folder's model.gguf. It is a separate process, because pipelines of OpenVINO GenAI replace the stack of
signal handlers, free it when they end in another order than they began, and leave it to the next signal.
"""

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np

from tests.server.backends.engines.gguf_model import write_gguf

CHECKOUT = Path(__file__).parents[4]


def write_ir(folder: Path, gguf: Path | None = None) -> Path:
    """Write model, tokenizer and detokenizer, of random weights if no file is given; layers get an exporter's names."""
    folder.mkdir(parents=True)
    file = folder / "model.gguf"
    if gguf is None:
        write_gguf(file)
    else:
        shutil.copy(gguf, file)
    subprocess.run([sys.executable, "-m", __name__, folder], cwd=CHECKOUT, timeout=300, check=True)
    file.unlink()
    return folder


def convert(folder: Path) -> None:
    """Write the IR beside model.gguf."""
    import openvino
    import openvino_genai as genai

    file = folder / "model.gguf"
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = 2
    genai.ContinuousBatchingPipeline(str(file), scheduler, "CPU", {"enable_save_ov_model": True})
    with warnings.catch_warnings(action="ignore"):  # what the package imports for it warns
        genai.Tokenizer(str(file), {"enable_save_ov_model": True})
    saved = folder / "openvino_model.xml"
    model = openvino.Core().read_model(saved)
    for layer in model.get_ordered_ops():
        if layer.get_type_name() == "MatMul":
            weight = layer.input(1).get_source_output().get_node()
            while weight.get_type_name() in ("Convert", "Transpose"):
                weight = weight.input(0).get_source_output().get_node()
            name = weight.get_friendly_name()
            if name.endswith(".weight"):
                layer.set_friendly_name(name.removesuffix(".weight").replace("[", ".").replace("]", ""))
    renamed = folder / "renamed.xml"
    openvino.save_model(model, renamed, compress_to_fp16=False)
    del model, layer, weight  # they have the weights' file mapped
    for suffix in (".xml", ".bin"):
        renamed.with_suffix(suffix).replace(saved.with_suffix(suffix))


def write_adapter(path: Path, *, seed: int = 1) -> Path:
    """Write a LoRA adapter that changes much, as a safetensors file: a header in JSON, then the tensors."""
    random = np.random.default_rng(seed)
    layer = "base_model.model.model.layers.0.mlp.down_proj"
    tensors = {
        f"{layer}.lora_A.weight": random.standard_normal((4, 128)).astype(np.float32) * 3,
        f"{layer}.lora_B.weight": random.standard_normal((64, 4)).astype(np.float32) * 3,
    }
    header: dict[str, object] = {}
    position = 0
    for name, tensor in tensors.items():
        offsets = [position, position := position + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(map(np.ndarray.tobytes, tensors.values())))
    return path


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
