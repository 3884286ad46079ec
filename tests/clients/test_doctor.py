"""`conch doctor` on this machine, without a server and at one with degradations."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from conch import __version__
from conch.clients.doctor import CHECKS
from conch.domain.degradations import reasons
from tests.support.models import ECHO, tensor, write_python
from tests.support.ports import free_port
from tests.support.server_process import ConchProcess

TENSORS = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"


def doctor(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "conch", "doctor", *flags]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def findings(url: str, *flags: str) -> dict[str, dict[str, Any]]:
    diagnoses: list[dict[str, Any]] = json.loads(doctor("--url", url, *flags, "--json").stdout)
    return {finding["check"]: finding for finding in diagnoses}


def test_every_problem_has_its_costs_and_a_cure() -> None:
    diagnoses = [finding for check in CHECKS for finding in check()]
    assert {finding.area for finding in diagnoses} == {"install", "machine"}
    assert len({finding.check for finding in diagnoses}) >= 15
    for finding in diagnoses:
        assert finding.found
        if finding.level == "problem":
            assert finding.costs, finding
            assert finding.cure, finding


def test_server_that_does_not_answer_is_a_problem_if_it_was_asked_for() -> None:
    port = free_port()
    done = doctor("--url", f"127.0.0.1:{port}", "--quiet")
    assert done.returncode == 1
    assert f"problem answer: no server answers at http://127.0.0.1:{port}: connection refused" in done.stdout
    assert "  ok " not in done.stdout
    assert "versions: conch" not in done.stdout


def test_degradations_of_a_server_are_named_with_costs_and_cures(tmp_path: Path) -> None:
    write_python(tmp_path / "models", "hopeful", f"{TENSORS} instance_group {{ kind: KIND_GPU }}", ECHO)
    write_python(tmp_path / "models", "broken", TENSORS, ECHO, more="def initialize(self, args): raise ValueError('x')")
    flags = ("--exit-on-error=false", "--strict-readiness=false")
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log", wait="live") as server:
        server.until_logged("degraded: ")
        by_check = findings(server.http, "--metrics-url", f"http://127.0.0.1:{server.ports['metrics']}")
        assert by_check["answer"]["found"] == f"triton {__version__}"
        assert by_check["models"]["found"] == "1 of 2 ready"
        assert by_check["model broken"]["found"].startswith("UNAVAILABLE: ")
        reason = by_check["kind_gpu_on_cpu (hopeful)"]
        known = reasons()["kind_gpu_on_cpu"]
        assert (reason["level"], reason["costs"], reason["cure"]) == ("problem", known.costs, known.cure)
        without = findings(server.http, "--metrics-url", f"http://127.0.0.1:{free_port()}")
        assert "connection refused; --metrics-url names another" in without["metrics"]["found"]


def test_invalid_arguments_have_another_status() -> None:
    assert doctor("--nothing").returncode == 2
    assert doctor("--api-key-file", "/nothing").returncode == 2
