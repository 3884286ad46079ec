"""`backend: "openvino_genai"`: language models through OpenVINO GenAI, on CPUs, without torch.

A version's directory holds the files of an IR (`openvino_model.xml`, tokenizer and detokenizer) or one GGUF file, and
optionally `model.json` with options, see `conch_child/engine/openvino_genai/options.py`, and `multi_lora.json`. With
`"task": "embed"` in `model.json` the IR is a sentence encoder, see `conch_child/python/adapters/pooling_model.py`.
"""

from collections.abc import Mapping
from typing import Any

from conch.server.backends.engines.backend import EngineBackend
from conch.server.backends.engines.memory import GIB


class OpenVinoGenaiBackend(EngineBackend):
    """Language models through OpenVINO GenAI."""

    name = "openvino_genai"
    package = "openvino_genai"
    extra = "openvino-genai"
    can_use_gpus = False
    pools = True

    def cache_bytes(self, options: Mapping[str, Any]) -> int | None:
        """Return the size from `cache_size` (GiB); 0 with `num_kv_blocks`, whose size is unknown before the load."""
        size = options.get("cache_size")
        if "num_kv_blocks" in options:
            return 0
        return size * GIB if isinstance(size, int) else None


backend = OpenVinoGenaiBackend
