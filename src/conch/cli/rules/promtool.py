"""Run promtool."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from conch.monitoring.yaml_documents import dump_documents

_TIMEOUT_S = 120
INSTALL = "promtool is not on PATH; install it with apt-get install prometheus, or from https://prometheus.io/download/"


def find_promtool() -> str | None:
    """Return the path of promtool; None if it is not installed."""
    return shutil.which("promtool")


def run_tests(promtool: str, rules: Any, tests: dict[str, Any]) -> tuple[bool, str]:
    """Run a test file, which names its rule file `rules.yml`; return success and the output."""
    with tempfile.TemporaryDirectory(prefix="conch-rules-") as name:
        folder = Path(name)
        (folder / "rules.yml").write_text(dump_documents([rules]), encoding="utf-8")
        (folder / "tests.yml").write_text(dump_documents([tests]), encoding="utf-8")
        try:
            result = subprocess.run(
                [promtool, "test", "rules", "tests.yml"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False, f"promtool did not end within {_TIMEOUT_S} s"
        return result.returncode == 0, result.stdout + result.stderr
