"""The loop with the other proxy, the other client and KEDA's ScaledObject. `make test-fleet` runs these minutes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.deploy_files import CHART

from tests.operate.fleet.process import FleetProcess

VARIANTS = {
    "nginx": ("nginx", "grpc", "hpa"),
    "nginx-http": ("nginx", "http", "hpa"),
    "http": ("haproxy", "http", "hpa"),
    "keda": ("haproxy", "grpc", "keda"),
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("CONCH_TEST_FLEET"), reason="takes minutes; make test-fleet runs it"),
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_replicas_follow_the_load_and_no_request_is_lost(variant: str, tmp_path: Path) -> None:
    proxy, client, policy = VARIANTS[variant]
    # On the ratio alone: by utilization, the client with which the load ends would keep two replicas.
    values = [f"--values={CHART / 'gpt2_values.yaml'}", f"--set=autoscaling.type={policy}"]
    render = [sys.executable, "-m", "conch", "k8s", "render", "gpt2", *values]
    (tmp_path / "policy.yaml").write_bytes(subprocess.run(render, check=True, capture_output=True).stdout)
    flags = [f"--hpa={tmp_path / 'policy.yaml'}", f"--client={client}", f"--output={tmp_path / 'output'}", "--speed=20"]
    with FleetProcess("demo", *flags, "--load=5s:1,25s:10,3s:1", log=tmp_path / "log", proxy=proxy) as fleet:
        assert fleet.wait() == 0, fleet.text
    verdict = json.loads((tmp_path / "output" / "fleet.json").read_text())["verdict"]
    assert (verdict["peak"], verdict["path"][-1], verdict["lost"]) == (4, 1, 0)
