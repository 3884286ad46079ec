"""Compiles the fake NVML library once."""

from pathlib import Path

import pytest

from tests.accelerators.nvml import compile_library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("nvml"))
