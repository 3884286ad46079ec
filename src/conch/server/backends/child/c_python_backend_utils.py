"""Triton's name for the module of its compiled classes, which models import for annotations."""

from __future__ import annotations

from triton_python_backend_utils import (
    InferenceRequest,
    InferenceResponse,
    InferenceResponseSender,
    InferenceTrace,
    Logger,
    Metric,
    MetricFamily,
    PreferredMemory,
    Tensor,
    TritonError,
    TritonModelException,
)

__all__ = [
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "Metric",
    "MetricFamily",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
]
