"""A fake NVML library, compiled once, and a folder for fake tools."""

import os
from pathlib import Path

import pytest

from tests.machine.accelerators.kubelet import Kubelet
from tests.machine.accelerators.nvml import compile_library
from tests.machine.accelerators.tools import ToolFolder


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToolFolder:
    """A folder that comes first in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return ToolFolder(folder)


@pytest.fixture
def kubelet(tmp_path: Path) -> Kubelet:
    return Kubelet(tmp_path / "kubelet.sock")
