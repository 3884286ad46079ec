"""`backend: "vllm"`: language models through vLLM, in the repository layout of Triton's vLLM backend.

A version's directory holds `model.json`, the arguments of vLLM's engine, and optionally `multi_lora.json`. The engine
runs in a process, whose packages may be in a separate environment, as they pin versions of many others:
`--backend-config=vllm,env-path=<folder>`, or a model's parameter EXECUTION_ENV_PATH. With `"runner": "pooling"` in
`model.json` the model embeds, scores or classifies, see `conch_child/python/adapters/pooling_model.py`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conch.server.backends.engines.backend import EngineBackend

# Exists on machines with an NVIDIA GPU.
_GPU = Path("/dev/nvidia0")


class VllmBackend(EngineBackend):
    """Language models through vLLM."""

    name = "vllm"
    package = "vllm"
    extra = "vllm"
    pools = True

    def cache_bytes(self, options: Mapping[str, Any]) -> int | None:
        """Return the size from `kv_cache_memory_bytes` or vLLM's variable; 0 with a GPU, or if it has other units."""
        size = options.get("kv_cache_memory_bytes")
        if space := "" if size else os.environ.get("VLLM_CPU_KVCACHE_SPACE", ""):
            size = int(space) << 30 if space.isdecimal() else 0
        if _GPU.exists() or "gpu_memory_utilization" in options or "num_gpu_blocks_override" in options:
            return 0
        return size if isinstance(size, int) else None


backend = VllmBackend
