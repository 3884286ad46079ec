"""`backend: "vllm"`: language models through vLLM, by the repository layout of Triton's vLLM backend.

A version's directory holds `model.json`, the arguments of vLLM's engine, and if wanted `multi_lora.json`. The engine
runs in a process of its own; its packages may be in an environment of their own, since they fix versions of many
others: `--backend-config=vllm,env-path=<folder>`, or the parameter EXECUTION_ENV_PATH of a model.
With `"runner": "pooling"` in `model.json` the model makes embeddings, see `conch_child/python/embedding_model.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conch.backends.base import ModelSource
from conch.backends.engines.base import Engine, EngineBackend
from conch.backends.engines.interpreter import interpreter
from conch.backends.engines.memory import EngineMemory
from conch.backends.engines.process_engine import ProcessEngine
from conch.backends.processes.fork_server import ForkServer

# There is one if the machine's first GPU is.
_GPU = Path("/dev/nvidia0")


class VllmBackend(EngineBackend):
    """Language models through vLLM."""

    name = "vllm"
    makes_embeddings = True

    def __init__(self, fork_server: ForkServer | None = None, memory: EngineMemory | None = None) -> None:
        """Assign. `memory` is shared with other backends, `fork_server` one that has been started ahead of time."""
        super().__init__(fork_server)
        self._memory = memory or EngineMemory()

    def engine(self, source: ModelSource) -> Engine:
        """Make the engine of a model version. Raises ModelLoadError if its packages are not there."""
        python = interpreter(source, "vllm", "vllm")
        return ProcessEngine(
            source,
            self.name,
            python=python,
            memory=self._memory,
            stated_cache=_stated_cache,
            environment=self.environment,
        )


def _stated_cache(options: Mapping[str, Any]) -> int | None:
    """Return how much of the machine's memory the cache takes: none if there is a GPU for it, or blocks are counted."""
    size = options.get("kv_cache_memory_bytes")
    if _GPU.exists() or "gpu_memory_utilization" in options or "num_gpu_blocks_override" in options:
        return 0
    return size if isinstance(size, int) else None


backend = VllmBackend
