"""A real browser without a window."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.debian import debian_environment, debian_tool

_WAIT_MS = 8000  # of the browser's virtual time


def chromium(page: Path, scratch: Path, *flags: str, columns: int = 1280, rows: int = 900) -> tuple[str, str]:
    """Open a page in chromium; return stdout, which is the document for --dump-dom, and the page's console."""
    program = debian_tool("chromium")
    unpacked = program.parents[1] / "lib" / "chromium" / "chromium"  # the other one is a script with absolute paths
    program = unpacked if unpacked.is_file() else program
    environment = debian_environment()
    pulse = [str(path.parent) for path in program.parents[3].glob("usr/lib/*/pulseaudio/libpulsecommon*.so")]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([*pulse, environment.get("LD_LIBRARY_PATH", "")])
    command = [
        *(
            str(program),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ),
        *(
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND",
        ),
        *(
            "--enable-logging=stderr",
            "--v=0",
            f"--user-data-dir={scratch / 'profile'}",
            f"--window-size={columns},{rows}",
        ),
        *(f"--virtual-time-budget={_WAIT_MS}", *flags, page.as_uri()),
    ]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=180, env=environment, cwd=scratch
    )
    if result.returncode:
        pytest.skip(f"chromium does not run here: {result.stderr.strip().splitlines()[-1:]}")
    return result.stdout, "\n".join(line for line in result.stderr.splitlines() if "CONSOLE" in line)
