"""Where the tests that run TensorRT-LLM find it: the environment that TEST_TENSORRTLLM_ENV names, or the tests' own."""

import ctypes
import os
from importlib.util import find_spec

import pytest

_ENVIRONMENT = os.environ.get("TEST_TENSORRTLLM_ENV", "")
SETTINGS = {"env-path": _ENVIRONMENT} if _ENVIRONMENT else {}


def why_not() -> str:
    """Return what is missing here, "" if nothing is."""
    if not _ENVIRONMENT and find_spec("tensorrt_llm") is None:
        return "TensorRT-LLM is not there: set TEST_TENSORRTLLM_ENV to an environment that has tensorrt-llm"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA GPU: {error}"
    return ""


NOT_HERE = why_not()
# Marks of a test that runs TensorRT-LLM.
needs_tensorrtllm = (pytest.mark.gpu, pytest.mark.skipif(bool(NOT_HERE), reason=NOT_HERE or "it runs"))
