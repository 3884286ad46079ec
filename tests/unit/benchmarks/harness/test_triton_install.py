"""The command that installs Triton, which reasons of skipped tests name."""

import subprocess
import sys
from pathlib import Path

from benchmarks.harness.triton_install import REQUIREMENTS, TritonInstall


def test_the_command_keeps_a_complete_installation(tmp_path: Path) -> None:
    triton = TritonInstall(tmp_path)
    triton.binary.parent.mkdir(parents=True)
    triton.binary.touch()
    (tmp_path / "triton-requirements").write_text("\n".join(REQUIREMENTS))
    command = [sys.executable, "-m", "benchmarks.harness.triton_install", str(tmp_path)]
    ended = subprocess.run(command, cwd=Path(__file__).parents[4], capture_output=True, text=True, check=True)
    assert ended.stdout == f"Triton is installed: {triton.binary}\n"
