"""`backend: "tensorrtllm"`: language models through TensorRT-LLM's LLM API, on NVIDIA GPUs.

A version's directory holds `model.json`, the arguments of `tensorrt_llm.LLM` (or Triton's `model.yaml` with the same),
and if wanted `multi_lora.json`. Checkpoints are run as they are; an engine that `trtllm-build` has made is not. The
package is best kept in an environment of its own: `--backend-config=tensorrtllm,env-path=<folder>`, or the parameter
EXECUTION_ENV_PATH of a model.
"""

from collections.abc import Mapping
from typing import Any

from conch.backends.base import ModelSource
from conch.backends.engines.base import Engine, EngineBackend
from conch.backends.engines.interpreter import interpreter
from conch.backends.engines.process_engine import ProcessEngine
from conch.errors import ConfigError

_WHERE = "in model.json in the version's directory"
# Parameters of Triton's backend for engines of trtllm-build → what says the same to the LLM API.
_ELSEWHERE = {
    "gpt_model_path": '"model": the checkpoint that the engine was built from, its folder or name on the hub,',
    "engine_dir": '"model": the checkpoint that the engine was built from, its folder or name on the hub,',
    "tokenizer_dir": '"tokenizer"',
    "max_beam_width": '"max_beam_width"',
    "max_tokens_in_paged_kv_cache": '"kv_cache_config": {"max_tokens": …}',
    "max_attention_window_size": '"kv_cache_config": {"max_attention_window": […]}',
    "sink_token_length": '"kv_cache_config": {"sink_token_length": …}',
    "kv_cache_free_gpu_mem_fraction": '"kv_cache_config": {"free_gpu_memory_fraction": …}',
    "kv_cache_host_memory_bytes": '"kv_cache_config": {"host_cache_size": …}',
    "enable_kv_cache_reuse": '"kv_cache_config": {"enable_block_reuse": …}',
    "batch_scheduler_policy": '"scheduler_config": {"capacity_scheduler_policy": …}',
    "enable_chunked_context": '"enable_chunked_prefill"',
    "guided_decoding_backend": '"guided_decoding_backend"',
}


class TensorRtLlmBackend(EngineBackend):
    """Language models through TensorRT-LLM."""

    name = "tensorrtllm"

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Add the tensors of a generation. Raises ConfigError for what Triton's backend for built engines reads."""
        refuse_parameters(source.config.name, source.config.parameters)
        return await super().complete(source)

    def engine(self, source: ModelSource) -> Engine:
        """Make the engine of a model version. Raises ConfigError, or ModelLoadError if its packages are not there."""
        refuse_parameters(source.config.name, source.config.parameters)
        python = interpreter(source, "tensorrt_llm", "tensorrtllm")
        return ProcessEngine(source, self.name, python=python, environment=self.environment)


def refuse_parameters(model: str, parameters: Mapping[str, str]) -> None:
    """Raise ConfigError naming the first parameter that says what belongs into `model.json`.

    What Triton's templates leave unset, `${engine_dir}` for one, says nothing.
    """
    for name, place in _ELSEWHERE.items():
        value = parameters.get(name, "")
        if value and not value.startswith("${"):
            raise ConfigError(
                f"parameter '{name}' of model '{model}' is for engines of trtllm-build; this backend runs checkpoints "
                f"through TensorRT-LLM's LLM API: give {place} {_WHERE}"
            )


backend = TensorRtLlmBackend
