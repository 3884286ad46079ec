"""Where the tests that run vLLM find it: the folder that `make vllm` sets up, or the one that TEST_VLLM_ENV names."""

import os
from pathlib import Path

import pytest
from benchmarks.harness.vllm_install import VllmInstall

_CHECKOUT = Path(__file__).parents[4]


def _environment() -> Path | None:
    named = os.environ.get("TEST_VLLM_ENV")
    if named:
        return Path(named)
    install = VllmInstall(_CHECKOUT / ".bench")
    return install.environment if install.complete else None


ENVIRONMENT = _environment()
SETTINGS = {"env-path": str(ENVIRONMENT)}
# Marks of a test that runs vLLM.
needs_vllm = (
    pytest.mark.vllm,
    pytest.mark.skipif(ENVIRONMENT is None, reason="vLLM is not there: `make vllm` sets it up, or set TEST_VLLM_ENV"),
)
