"""Run promtool."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

_MAX_TIMEOUT_S = 120
INSTALL = "promtool is not on PATH; install it with apt-get install prometheus, or from https://prometheus.io/download/"


def find_promtool() -> str | None:
    """Return the path of promtool; None if it is not installed."""
    return shutil.which("promtool")


class PromtoolTimeout(Exception):
    """promtool did not end in time."""


def run_tests(promtool: str, rules: Any, tests: dict[str, Any], timeout_s: float = _MAX_TIMEOUT_S) -> tuple[bool, str]:
    """Run a test file, which names its rule file `rules.yml`; return success and the output.

    Raises PromtoolTimeout.
    """
    with tempfile.TemporaryDirectory(prefix="conch-rules-") as name:
        folder = Path(name)
        # JSON is YAML, and is written a hundred times faster.
        (folder / "rules.yml").write_text(json.dumps(rules, default=str), encoding="utf-8")
        (folder / "tests.yml").write_text(json.dumps(tests), encoding="utf-8")
        try:
            result = subprocess.run(
                [promtool, "test", "rules", "tests.yml"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=max(min(timeout_s, _MAX_TIMEOUT_S), 0.01),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PromtoolTimeout(f"promtool did not end within {error.timeout:.3g} s") from None
        return result.returncode == 0, result.stdout + result.stderr
