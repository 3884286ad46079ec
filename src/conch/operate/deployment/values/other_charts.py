"""Names that other charts of Triton have for the same values: accepted, so that their files of values work.

`gpu`, `model` and `triton` are of NVIDIA's autoscaling chart for TensorRT-LLM, `modelRepositoryPath` is of
nvidia-triton-server of the EKS blueprints, whose other names are Conch's own.
"""

from typing import Annotated

from msgspec import Meta, field

from conch.operate.deployment.values.section import Count, NamedSecret, Section

# The other chart's key, and Conch's. Where both are given, the other chart's takes effect.
ACCEPTED_NAMES = {
    "gpu": "accelerator.products",
    "model.name": "server.loadModels",
    "model.tensorrtLlm.parallelism.tensor": "parallelism.tensor",
    "model.tensorrtLlm.parallelism.pipeline": "parallelism.pipeline",
    "modelRepositoryPath": "modelRepository.path",
    "triton.image.name": "image.name",
    "triton.image.pullSecrets": "image.pullSecrets",
}


class TensorrtLlmParallelism(Section, frozen=True):
    """See parallelism."""

    tensor: Annotated[Count, Meta(description="parallelism.tensor; 0: not given")] = 0
    pipeline: Annotated[Count, Meta(description="parallelism.pipeline; 0: not given")] = 0


class TensorrtLlmValues(Section, frozen=True):
    """Settings of TensorRT-LLM."""

    parallelism: Annotated[TensorrtLlmParallelism, Meta(description="See parallelism")] = field(
        default_factory=TensorrtLlmParallelism
    )


class ModelValues(Section, frozen=True):
    """One model."""

    name: Annotated[str, Meta(description="server.loadModels with one model")] = ""
    tensorrt_llm: Annotated[TensorrtLlmValues, Meta(description="Settings of TensorRT-LLM")] = field(
        default_factory=TensorrtLlmValues
    )


class TritonImageValues(Section, frozen=True):
    """See image."""

    name: Annotated[str, Meta(description="image.name")] = ""
    pull_secrets: Annotated[tuple[NamedSecret, ...], Meta(description="image.pullSecrets")] = ()


class TritonValues(Section, frozen=True):
    """The server."""

    image: Annotated[TritonImageValues, Meta(description="See image")] = field(default_factory=TritonImageValues)
