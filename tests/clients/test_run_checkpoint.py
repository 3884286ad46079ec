"""`conch run` of a checkpoint folder as the Hub has it, which vLLM runs from an environment that a variable names."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.running import Running
from tests.server.backends.engines.hf_model import write_hf
from tests.server.backends.engines.vllm_environment import SETTINGS, needs_vllm

# vLLM compiles the model, which takes minutes on a machine that is busy.
pytestmark = [*needs_vllm, pytest.mark.timeout(1800)]


def test_a_checkpoint_folder_is_served(tmp_path: Path) -> None:
    write_hf(tmp_path / "tiny")
    variables = {"CONCH_BACKEND_CONFIG": f"vllm,env-path={SETTINGS['env-path']}", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with Running(tmp_path, str(tmp_path / "tiny"), **variables) as server:
        assert "tiny is ready on CPU, backend vllm" in server.text
        answer = subprocess.run(["bash", "-c", server.curl], capture_output=True, text=True, timeout=300, check=True)
        (choice,) = json.loads(answer.stdout)["choices"]
        assert choice["message"]["content"]
        assert choice["finish_reason"] in ("length", "stop")
        said = subprocess.run([sys.executable, "-c", server.python], capture_output=True, text=True, timeout=300)
        assert said.returncode == 0, said.stderr
        assert said.stdout.strip()
