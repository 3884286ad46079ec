"""Settings that this server does not support: refused by name, or accepted with a notice.

A setting that would change answers is refused. One that only affects the use of resources is accepted with a notice.
"""

from collections.abc import Iterator
from typing import Any

from conch.base.errors import ConfigError
from conch.domain.model_config import ENSEMBLE_PLATFORM
from conch.domain.triton_messages import ModelConfig as ConfigMessage

# Backends that receive each request separately, not as one batched tensor.
_BY_REQUEST = ("python", "identity")
# Backends whose engine has its own scheduler.
_ENGINES = ("openvino_genai", "scripted", "tensorrtllm", "vllm")


def refuse_unsupported(message: ConfigMessage) -> None:
    """Raise ConfigError for the first unsupported setting."""
    for tensor in (*message.input, *message.output):
        for field in ("is_shape_tensor", "is_non_linear_format_io"):
            # For other backends, `validate_tensors` says that the field is for TensorRT.
            if message.backend == "tensorrt" and getattr(tensor, field):
                raise ConfigError(
                    f"{field} ('{tensor.name}') of model '{message.name}' is not supported by this version of Conch"
                )


def refuse_namespaces(message: ConfigMessage) -> None:
    """Raise ConfigError if a step names a namespace; called where there are no namespaces."""
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
    for warmup in message.model_warmup:
        if warmup.batch_size == 0:
            yield f"model_warmup '{warmup.name}'", "its batch_size is 0, the default; set it to 1"
    if message.backend in _BY_REQUEST:
        for field in ("batch_input", "batch_output"):
            if getattr(message, field):
                yield field, f"backend '{message.backend}' receives each request separately"
    # Embedding models of these backends have a max_batch_size and are batched by the server.
    if message.backend in _ENGINES and not message.max_batch_size and _batches(message):
        yield "dynamic_batching", "the engine batches; default_queue_policy.max_queue_size limits its queue"
    if message.backend == "vllm":
        yield from _vllm_parameters(message)
    if not (message.model_transaction_policy.decoupled or message.platform == ENSEMBLE_PLATFORM):
        for index, control in enumerate(message.model_metrics.metric_control):
            if control.metric_identifier.family == "nv_inference_first_response_histogram_ms":
                yield f"model_metrics.metric_control[{index}]", "only decoupled models and ensembles have the metric"
    if message.model_operations.op_library_filename and message.backend != "onnxruntime":
        yield "model_operations", f"backend '{message.backend}' has no custom operations"


def _batches(message: ConfigMessage) -> bool:
    """Whether any setting beyond the queue size is given."""
    batching = message.dynamic_batching
    return bool(
        batching.preferred_batch_size
        or batching.max_queue_delay_microseconds
        or batching.priority_levels
        or batching.default_queue_policy.default_timeout_microseconds
    )


def _vllm_parameters(message: ConfigMessage) -> Iterator[tuple[str, str]]:
    """Yield parameters of Triton's vLLM backend whose values have no effect."""
    given = {name: parameter.string_value.lower() for name, parameter in message.parameters.items()}
    if given.get("REPORT_CUSTOM_METRICS", "yes") not in ("yes", "true"):
        yield "parameter REPORT_CUSTOM_METRICS", "metrics of language models are always reported"
    if given.get("ENABLE_VLLM_HEALTH_CHECK", "true") not in ("yes", "true"):
        yield "parameter ENABLE_VLLM_HEALTH_CHECK", "the server always detects and restarts a dead engine"
    if given.get("FORCE_CPU_ONLY_INPUT_TENSORS", "yes") not in ("yes", "true"):
        yield "parameter FORCE_CPU_ONLY_INPUT_TENSORS", "prompts are never in GPU memory"


def _group_settings(message: ConfigMessage) -> Iterator[tuple[str, str]]:
    for index, group in enumerate(message.instance_group):
        at = f"instance_group[{index}]"
        if group.secondary_devices:
            yield f"{at}.secondary_devices", "no backend uses secondary devices"


def _state_memory(message: ConfigMessage) -> Iterator[tuple[str, str]]:
    for state in message.sequence_batching.state:
        for field in ("use_same_buffer_for_input_output", "use_growable_memory"):
            if getattr(state, field):
                yield f"{field} of the state '{state.input_name}'", "states are passed on without a copy"


def _optimizations(message: ConfigMessage) -> Iterator[tuple[str, str]]:
    if message.platform == ENSEMBLE_PLATFORM:
        return
    optimization = message.optimization
    for field in ("priority", "gather_kernel_buffer_threshold", "eager_batching"):
        if getattr(optimization, field):
            yield f"optimization.{field}", "no backend uses it"
    if optimization.HasField("cuda"):
        yield "optimization.cuda", "no backend uses CUDA graphs"
    if optimization.HasField("graph") and message.backend != "onnxruntime":
        yield "optimization.graph", f"backend '{message.backend}' has no levels of graph optimization"
    for field in ("input_pinned_memory", "output_pinned_memory"):
        if optimization.HasField(field) and not getattr(optimization, field).enable:
            yield f"optimization.{field}", "the frameworks manage device memory"
    accelerators: Any = optimization.execution_accelerators
    if message.backend != "onnxruntime" and (
        accelerators.gpu_execution_accelerator or accelerators.cpu_execution_accelerator
    ):
        yield "optimization.execution_accelerators", f"backend '{message.backend}' has no execution accelerators"
