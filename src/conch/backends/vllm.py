"""`backend: "vllm"`: language models through vLLM, by the repository layout of Triton's vLLM backend.

A version's directory holds `model.json`, the arguments of vLLM's engine, and if wanted `multi_lora.json`. The engine
runs in a process of its own; its packages may be in an environment of their own, since they fix versions of many
others: `--backend-config=vllm,env-path=<folder>`, or the parameter EXECUTION_ENV_PATH of a model.
"""

from conch.backends.base import ModelSource
from conch.backends.engine import Engine, EngineBackend
from conch.backends.engine_host.engine import ProcessEngine
from conch.backends.engine_host.interpreter import interpreter


class VllmBackend(EngineBackend):
    """Language models through vLLM."""

    name = "vllm"

    def engine(self, source: ModelSource) -> Engine:
        """Make the engine of a model version. Raises ModelLoadError if its packages are not there."""
        return ProcessEngine(source, self.name, python=interpreter(source, "vllm", "vllm"))


backend = VllmBackend
