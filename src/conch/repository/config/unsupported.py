"""What a configuration may ask for and this server does not do: refused by name, or accepted and told.

Refused is what would change answers; accepted, with a notice, what only changes how resources are used.
"""

from collections.abc import Iterator
from typing import Any

from conch.errors import ConfigError
from conch.model_config import ENSEMBLE_PLATFORM
from conch.triton_messages import ModelConfig as ConfigMessage

# Backends to which requests are given one by one, in their own shapes.
_BY_REQUEST = ("python", "identity")
# Backends with a scheduler of their own.
_ENGINES = ("openvino_genai", "scripted", "tensorrtllm", "vllm")


def refuse_unsupported(message: ConfigMessage) -> None:
    """Raise ConfigError naming the first thing that cannot be served."""
    for agent in message.model_repository_agents.agents:
        raise ConfigError(
            f"model_repository_agents ('{agent.name}') of model '{message.name}' is not supported by this version of "
            "Conch"
        )
    for tensor in (*message.input, *message.output):
        for field in ("is_shape_tensor", "is_non_linear_format_io"):
            # Of other backends the rules for tensors say that it is for TensorRT.
            if message.backend == "tensorrt" and getattr(tensor, field):
                raise ConfigError(
                    f"{field} ('{tensor.name}') of model '{message.name}' is not supported by this version of Conch"
                )


def refuse_namespaces(message: ConfigMessage) -> None:
    """Raise ConfigError if a step gives a namespace: to be called where there are none."""
    for step in message.ensemble_scheduling.step:
        if step.model_namespace:
            raise ConfigError(
                f"model_namespace of the step '{step.model_name}' of model '{message.name}' needs "
                "--model-namespacing=true"
            )


def unsupported_notices(message: ConfigMessage) -> tuple[str, ...]:
    """Return a sentence for each setting that is accepted and has no effect."""
    return tuple(f"{what} of model '{message.name}' has no effect: {why}" for what, why in _without_effect(message))


def _without_effect(message: ConfigMessage) -> Iterator[tuple[str, str]]:
    yield from _group_settings(message)
    yield from _optimizations(message)
    yield from _state_memory(message)
    if message.runtime and message.backend != "pytorch":
        yield "runtime", "backends are part of this server"
    if message.backend in _BY_REQUEST:
        for field in ("batch_input", "batch_output"):
            if getattr(message, field):
                yield field, f"backend '{message.backend}' gets each request as it is"
    # What makes embeddings with an engine's library is batched, and says so by its max_batch_size.
    if message.backend in _ENGINES and not message.max_batch_size and _batches(message):
        yield "dynamic_batching", "engines batch by themselves; default_queue_policy.max_queue_size bounds what waits"
    if message.backend == "vllm":
        yield from _vllm_parameters(message)
    if message.HasField("model_metrics"):
        yield "model_metrics", "histogram buckets are the server's"
    if message.model_operations.op_library_filename and message.backend != "onnxruntime":
        yield "model_operations", f"backend '{message.backend}' has no custom operations"


def _batches(message: ConfigMessage) -> bool:
    """Whether anything is said of how to batch, beyond how many may wait."""
    batching = message.dynamic_batching
    return bool(
        batching.preferred_batch_size
        or batching.max_queue_delay_microseconds
        or batching.priority_levels
        or batching.default_queue_policy.default_timeout_microseconds
    )


def _vllm_parameters(message: ConfigMessage) -> Iterator[tuple[str, str]]:
    """Parameters of Triton's vLLM backend."""
    given = {name: parameter.string_value.lower() for name, parameter in message.parameters.items()}
    if given.get("REPORT_CUSTOM_METRICS", "yes") not in ("yes", "true"):
        yield "parameter REPORT_CUSTOM_METRICS", "metrics of models that generate are always there"
    if given.get("ENABLE_VLLM_HEALTH_CHECK", "true") not in ("yes", "true"):
        yield "parameter ENABLE_VLLM_HEALTH_CHECK", "an engine that has died is always seen, and replaced"
    if given.get("FORCE_CPU_ONLY_INPUT_TENSORS", "yes") not in ("yes", "true"):
        yield "parameter FORCE_CPU_ONLY_INPUT_TENSORS", "prompts are never in a GPU's memory"


def _group_settings(message: ConfigMessage) -> Iterator[tuple[str, str]]:
    for index, group in enumerate(message.instance_group):
        at = f"instance_group[{index}]"
        if group.host_policy:
            yield f"{at}.host_policy", "this server has no host policies"
        if group.secondary_devices:
            yield f"{at}.secondary_devices", "no backend uses secondary devices"


def _state_memory(message: ConfigMessage) -> Iterator[tuple[str, str]]:
    for state in message.sequence_batching.state:
        for field in ("use_same_buffer_for_input_output", "use_growable_memory"):
            if getattr(state, field):
                yield f"{field} of the state '{state.input_name}'", "state is handed on as it is, without a copy"


def _optimizations(message: ConfigMessage) -> Iterator[tuple[str, str]]:
    if message.platform == ENSEMBLE_PLATFORM:
        return
    optimization = message.optimization
    for field in ("priority", "gather_kernel_buffer_threshold", "eager_batching"):
        if getattr(optimization, field):
            yield f"optimization.{field}", "no backend here makes use of it"
    if optimization.HasField("cuda"):
        yield "optimization.cuda", "no backend here makes CUDA graphs"
    if optimization.HasField("graph") and message.backend != "onnxruntime":
        yield "optimization.graph", f"backend '{message.backend}' has no levels of graph optimization"
    for field in ("input_pinned_memory", "output_pinned_memory"):
        if optimization.HasField(field) and not getattr(optimization, field).enable:
            yield f"optimization.{field}", "the frameworks manage device memory themselves"
    accelerators: Any = optimization.execution_accelerators
    if message.backend != "onnxruntime" and (
        accelerators.gpu_execution_accelerator or accelerators.cpu_execution_accelerator
    ):
        yield "optimization.execution_accelerators", f"backend '{message.backend}' has no execution accelerators"
