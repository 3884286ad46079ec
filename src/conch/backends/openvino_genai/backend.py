"""`backend: "openvino_genai"`: language models through OpenVINO GenAI, on the CPU without torch or hub.

A version's directory holds an IR folder's files (`openvino_model.xml`, tokenizer and detokenizer) or one GGUF file, and
if wanted a `model.json` with options, see `conch_child/engine/openvino_options.py`, and a `multi_lora.json`.
With `"task": "embed"` in `model.json` the IR folder is a sentence encoder, see `conch_child/python/embedding_model.py`.
"""

from collections.abc import Mapping
from typing import Any

from conch.backends.base import ModelSource
from conch.backends.engines.base import Engine, EngineBackend
from conch.backends.engines.interpreter import interpreter
from conch.backends.engines.memory import GIB, EngineMemory
from conch.backends.engines.process_engine import ProcessEngine
from conch.backends.processes.fork_server import ForkServer


class OpenVinoGenaiBackend(EngineBackend):
    """Language models through OpenVINO GenAI."""

    name = "openvino_genai"
    can_use_gpus = False
    makes_embeddings = True

    def __init__(self, fork_server: ForkServer | None = None, memory: EngineMemory | None = None) -> None:
        """Assign. `memory` is shared with other backends, `fork_server` one that has been started ahead of time."""
        super().__init__(fork_server)
        self._memory = memory or EngineMemory()

    def engine(self, source: ModelSource) -> Engine:
        """Make the engine of a model version. Raises ModelLoadError if its packages are not there."""
        python = interpreter(source, "openvino_genai", "openvino-genai")
        return ProcessEngine(
            source,
            self.name,
            python=python,
            memory=self._memory,
            stated_cache=_stated_cache,
            environment=self.environment,
        )


def _stated_cache(options: Mapping[str, Any]) -> int | None:
    """Return how large the options make the cache: so many GiB, or blocks, which say nothing before they are there."""
    size = options.get("cache_size")
    if "num_kv_blocks" in options:
        return 0
    return size * GIB if isinstance(size, int) else None


backend = OpenVinoGenaiBackend
