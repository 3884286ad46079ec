"""`backend: "tensorrtllm"`: language models through TensorRT-LLM's LLM API, on NVIDIA GPUs.

A version's directory holds `model.json`, the arguments of `tensorrt_llm.LLM` (or Triton's `model.yaml` with the same),
and optionally `multi_lora.json`. Checkpoints are supported, engines built by `trtllm-build` are not. The package is
best installed in a separate environment: `--backend-config=tensorrtllm,env-path=<folder>`, or a model's parameter
EXECUTION_ENV_PATH.
"""

from collections.abc import Mapping
from typing import Any

from conch.base.errors import ConfigError
from conch.server.backends.base import ModelSource
from conch.server.backends.engines.backend import EngineBackend
from conch.server.backends.engines.base import Engine

# Parameters of Triton's backend for engines of trtllm-build → the LLM API's equivalents in model.json.
_EQUIVALENTS = {
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
    package = "tensorrt_llm"
    extra = "tensorrtllm"

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Add the tensors of a generation. Raises ConfigError for parameters of Triton's backend for built engines."""
        refuse_parameters(source.config.name, source.config.parameters)
        return await super().complete(source)

    def engine(self, source: ModelSource) -> Engine:
        """Create the engine of a model version. Raises ConfigError, or ModelLoadError without its packages."""
        refuse_parameters(source.config.name, source.config.parameters)
        return super().engine(source)


def refuse_parameters(model: str, parameters: Mapping[str, str]) -> None:
    """Raise ConfigError for the first parameter that belongs into `model.json`, naming its equivalent there.

    Placeholders of Triton's templates, such as `${engine_dir}`, count as unset.
    """
    for name, equivalent in _EQUIVALENTS.items():
        value = parameters.get(name, "")
        if value and not value.startswith("${"):
            raise ConfigError(
                f"parameter '{name}' of model '{model}' is for engines of trtllm-build; this backend runs checkpoints "
                f"through TensorRT-LLM's LLM API: set {equivalent} in model.json in the version's directory"
            )


backend = TensorRtLlmBackend
