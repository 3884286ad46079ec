"""Packages of npm for tests, installed below `.venv/npm` once; nothing is installed for the machine."""

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[1] / ".venv" / "npm"


def npm_packages(*packages: str) -> Path:
    """Return a folder whose node_modules has packages such as `name@1.2.3`.

    Skips the test, with the reason, where npm is missing or cannot download them.
    """
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip(f"npm is not installed, and {', '.join(packages)} are packages of npm")
    folder = _FOLDER / hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    done = folder / "done"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not done.is_file():
            command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
            try:
                subprocess.run(
                    [*command, "--prefix", str(folder), *packages], check=True, capture_output=True, timeout=300
                )
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"npm cannot install {', '.join(packages)}: {error}")
            done.touch()
    return folder
