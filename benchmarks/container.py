"""What a container costs: the sizes of an image's layers, and its start beside that of the same files without one.

`python -m benchmarks.container IMAGE [--rounds N]`, as root, with podman and an image of deploy/Dockerfile. The bare
process has the image's file system as its root, so both run the same interpreter and packages. Rounds alternate.
"""

import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness.machine import CHECKOUT

MODELS = CHECKOUT / "examples" / "models"
SERVE = ("serve", "--model-control-mode=explicit", "--load-model=digits")
TIMEOUT_S = 60
# proc, dev and the models below the image's file system; then its own command.
BARE = """
for each in proc dev; do mount --rbind /$each $1/$each; done
mount --bind "$2" "$1/models" && mount -t tmpfs tmpfs "$1/tmp" && shift 2
exec chroot --userspec=10001:0 "$@"
"""
# crun refuses hybrid cgroups; the default limits exceed those of unprivileged machines.
OPTIONS = ("--runtime=runc", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")


def podman(*arguments: str) -> str:
    return subprocess.run(["podman", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def free_ports() -> list[str]:
    """Return variables with unused ports."""
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in ("HTTP", "GRPC", "METRICS")}
    variables = [f"CONCH_{name}_PORT={opened.getsockname()[1]}" for name, opened in sockets.items()]
    for opened in sockets.values():
        opened.close()
    return variables


def seconds_until_ready(http: str, began: float) -> float:
    """Wait for the server; return the time since `began`."""
    while time.monotonic() < began + TIMEOUT_S:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/ready", timeout=1) as response:
                if response.status == 200:
                    return time.monotonic() - began
        except (urllib.error.URLError, OSError):
            time.sleep(0.005)
    raise SystemExit("the server does not become ready")


def bare(_image: str, root: str) -> float:
    """Start the server in the image's file system, without a container."""
    ports = free_ports()
    settings = [
        *ports,
        "PATH=/opt/conch/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME=/tmp",
        "CONCH_MODEL_REPOSITORY=/models",
    ]
    command = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        BARE,
        "sh",
        root,
        str(MODELS),
        root,
        "env",
        "-i",
        *settings,
        "conch",
        *SERVE,
    ]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            return seconds_until_ready(ports[0].partition("=")[2], began)
        finally:
            process.send_signal(signal.SIGTERM)


def container(image: str, _root: str) -> float:
    """Start it as a container, restricted as in a cluster."""
    ports = free_ports()
    options = [*OPTIONS, "--network=host", "--read-only", "--cap-drop=all", f"--volume={MODELS}:/models:ro"]
    began = time.monotonic()
    name = podman("run", "--detach", "--no-healthcheck", *options, *(f"--env={port}" for port in ports), image, *SERVE)
    try:
        return seconds_until_ready(ports[0].partition("=")[2], began)
    finally:
        podman("rm", "--force", "--volumes", "--time=10", name)


def layer_sizes(image: str) -> list[int]:
    """Return the bytes of each layer as a push compresses it."""
    with tempfile.TemporaryDirectory() as folder:
        podman("push", "--quiet", "--compress", image, f"dir:{folder}")
        return [layer["size"] for layer in json.loads((Path(folder) / "manifest.json").read_text())["layers"]]


def main(image: str, rounds: Annotated[int, typer.Option(min=1)] = 15) -> None:
    """Print sizes and starts."""
    if os.geteuid() or not shutil.which("podman"):
        raise SystemExit("this needs root and podman")
    sizes = Table("layer", "MB compressed", title=f"{image}, from the base up")
    for number, size in enumerate(layer_sizes(image), 1):
        sizes.add_row(str(number), f"{size / 1e6:.1f}")
    Console().print(sizes)
    starts: dict[Callable[[str, str], float], list[float]] = {bare: [], container: []}
    root = podman("image", "mount", image)
    try:
        for _ in range(rounds + 1):
            for start, times in starts.items():
                times.append(start(image, root))
    finally:
        podman("image", "umount", image)
    table = Table("start to ready", "median", "fastest", "slowest", title=f"{rounds} rounds, after one to warm up")
    for start, times in starts.items():
        kept = times[1:]
        table.add_row(
            start.__name__, *(f"{seconds:.2f} s" for seconds in (statistics.median(kept), min(kept), max(kept)))
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
