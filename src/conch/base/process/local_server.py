"""A `conch serve` that another command starts on this machine, at free ports."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conch.base.errors import Unavailable
from conch.base.http.client import answers_ok

_START_TIMEOUT_S, _PROBE_TIMEOUT_S, _STOP_TIMEOUT_S = 120.0, 5.0, 30.0

_STARTED = {
    "http": re.compile(r"Started HTTPService at \S*:(\d+)"),
    "grpc": re.compile(r"Started GRPCInferenceService at \S*:(\d+)"),
    "metrics": re.compile(r"Started Metrics Service at \S*:(\d+)"),
}


def serve_command(*arguments: str) -> list[str]:
    """Return a command that serves on free ports of the loopback interface."""
    listeners = (f"--{name}-{flag}" for name in _STARTED for flag in ("address=127.0.0.1", "port=0"))
    return [sys.executable, "-m", "conch", "serve", *listeners, *arguments]


def started_ports(log: Path) -> dict[str, int]:
    """Return the ports by http, grpc and metrics, empty until the server's log has all of them."""
    text = log.read_text(errors="replace") if log.exists() else ""
    ports = {name: int(port[1]) for name, pattern in _STARTED.items() if (port := pattern.search(text))}
    return ports if len(ports) == len(_STARTED) else {}


@contextmanager
def local_server(log: Path, *arguments: str) -> Iterator[str]:
    """Run `conch serve` within a block, its log in a file; yield its URL. Raises Unavailable if it does not start."""
    with log.open("wb") as output:
        process = subprocess.Popen(serve_command(*arguments), stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        url = ""
        while not url or not answers_ok(f"{url}/v2/health/ready", _PROBE_TIMEOUT_S):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"conch serve did not start: {log.read_text(errors='replace')[-500:].strip()}")
            time.sleep(0.05)
            url = f"http://127.0.0.1:{ports['http']}" if (ports := started_ports(log)) else ""
        yield url
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
