"""`make observe`: the alert arrives as a message, and dashboards have data, with real Prometheus and Alertmanager."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.debian import debian_command

OBSERVE = Path(__file__).parents[2] / "examples" / "observe.py"


def observe(path: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": path, "COLUMNS": "160", "NO_COLOR": "1"}
    command = [sys.executable, str(OBSERVE), "--once"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)


@pytest.mark.slow
def test_an_alert_is_delivered_and_dashboards_have_data(tmp_path: Path) -> None:
    for name in ("prometheus", "prometheus-alertmanager"):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(debian_command(name))} "$@"\n')
        script.chmod(0o755)
    done = observe(f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the chat service has the message" in done.stdout
    assert "Conch / Overview and SLO" in done.stdout


def test_a_missing_package_is_named_with_the_way_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "openai.py").write_text("raise ModuleNotFoundError(name='openai')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(OBSERVE), "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("observe.py: openai is not installed; run: make observe, or: pip install -e")
    assert done.stderr.count("\n") == 1


def test_missing_programs_are_named_with_the_way_to_install_them(tmp_path: Path) -> None:
    done = observe(str(tmp_path))
    assert done.returncode == 1
    assert "apt-get install prometheus prometheus-alertmanager" in " ".join(done.stdout.split())
