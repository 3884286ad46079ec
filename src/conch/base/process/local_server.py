"""A `conch serve` that another command starts on this machine, at free ports."""

import re
import sys
from pathlib import Path

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
