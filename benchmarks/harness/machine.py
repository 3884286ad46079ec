"""What the figures were measured on and with: a figure without it says nothing."""

import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def machine() -> dict[str, str]:
    """Return processor, kernel, interpreter, generators and revision; the load average tells whether it was idle."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor(Path("/proc/cpuinfo").read_text()) or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load average before": f"{os.getloadavg()[0]:.1f}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "generators": f"{_first_words('wrk', '--version')}, {_first_words('h2load', '--version')}",
        "revision": _revision(),
    }


def processor(cpuinfo: str) -> str:
    """Return the processor's name from the text of /proc/cpuinfo; empty where it has none."""
    names = (line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name"))
    return next(names, "")


def package_versions(names: Iterable[str], path: list[str] | None = None) -> str:
    """Return `name version, …` of those packages that are installed in `path`, or for this interpreter."""
    installed = distributions() if path is None else distributions(path=path)
    versions = {distribution.metadata["Name"].lower(): distribution.version for distribution in installed}
    return ", ".join(f"{name} {versions[name]}" for name in names if name in versions)


def _revision() -> str:
    """Return the commit that is measured, and whether files differ from it."""
    if not (CHECKOUT / ".git").exists():
        return "unknown"
    return _first_words("git", "-C", str(CHECKOUT), "describe", "--always", "--dirty")


def _first_words(*command: str) -> str:
    """Return the first two words that a program prints; wrk tells its version with an error status."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return " ".join((done.stdout or done.stderr).split()[:2])
