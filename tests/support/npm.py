"""Packages of npm for tests, installed once below `.venv/npm`."""

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[2] / ".venv" / "npm"


def npm_package(name: str, version: str) -> Path:
    """Return the folder of a package. Skips the test, with the reason, where npm is missing or cannot install it."""
    folder = _FOLDER / f"{name.replace('/', '-')}-{version}"
    package = folder / "node_modules" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not (folder / "installed").exists():
            if shutil.which("npm") is None:
                pytest.skip(f"npm is not installed; it would install {name}")
            command = ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts"]
            done = subprocess.run(
                [*command, f"{name}@{version}"], capture_output=True, text=True, check=False, timeout=300
            )
            if done.returncode:
                pytest.skip(f"npm cannot install {name}: {done.stderr.strip()[-200:]}")
            (folder / "installed").touch()
    return package
