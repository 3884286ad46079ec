"""KServe's Python packages in a separate environment, because they need other versions of psutil and of web frameworks.

`python -m tests.operate.kserve.environment` (`make kserve`) makes it; tests find it there or at TEST_KSERVE_ENV.
"""

import os
import subprocess
import venv
from pathlib import Path

import pytest

PACKAGES = ("kserve==0.21.0", "kserve-storage==0.21.0")
_HOME = Path(__file__).parents[3] / ".bench" / "kserve-venv"
_STAMP = _HOME / "+".join(PACKAGES)  # written last


def _python() -> Path | None:
    named = os.environ.get("TEST_KSERVE_ENV")
    if named:
        return Path(named, "bin", "python")
    return _HOME / "bin" / "python" if _STAMP.exists() else None


PYTHON = _python()
# Marks of a test that runs KServe's package.
needs_kserve = (
    pytest.mark.kserve,
    pytest.mark.skipif(
        PYTHON is None,
        reason="the kserve package (550 MB) is not there: `make kserve` sets it up, or set TEST_KSERVE_ENV",
    ),
)


def run(script: Path, *arguments: object) -> str:
    """Run a script by the environment's interpreter and return what it prints. Fails with its errors."""
    assert PYTHON is not None
    done = subprocess.run([PYTHON, script, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


if __name__ == "__main__":
    if not _STAMP.exists():
        venv.create(_HOME, clear=True, with_pip=True)
        subprocess.run([_HOME / "bin" / "python", "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        _STAMP.touch()
