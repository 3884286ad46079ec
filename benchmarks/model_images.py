"""From push to served: `python -m benchmarks.model_images [--megabytes N] [--rounds N]`.

A real registry (docker-registry of Debian) and a real server that polls a tag. Each round changes a model, packs and
pushes it with `conch repo pack`, and waits for the first answer of the new version. Prints a Markdown table.
"""

import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import tritonclient.http as triton
import typer

CONFIG = """backend: "python" input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }"""
MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        values = (request.inputs()[0].as_numpy() * VERSION for request in requests)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each)]) for each in values]
"""
MAX_WAIT_S = 120


def bench(
    megabytes: Annotated[int, typer.Option(help="Size of the model.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Releases for each poll interval.")] = 5,
) -> None:
    """Measure releases with several poll intervals."""
    program = shutil.which("docker-registry")
    if program is None:
        raise typer.BadParameter("docker-registry is not installed: apt-get install docker-registry")
    print("| poll interval | `conch repo pack` | pushed to served | total, median | total, maximum |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="conch-bench-") as folder, registry(program, Path(folder)) as host:
        for poll_s in (1, 15):
            packed, served = zip(*measure(Path(folder), host, poll_s, megabytes, rounds), strict=True)
            totals = [sum(times) for times in zip(packed, served, strict=True)]
            print(
                f"| {poll_s} s | {statistics.median(packed):.1f} s | {statistics.median(served):.1f} s | "
                f"{statistics.median(totals):.1f} s | {max(totals):.1f} s |",
                flush=True,
            )


def measure(folder: Path, host: str, poll_s: int, megabytes: int, rounds: int) -> Iterator[tuple[float, float]]:
    """Yield the seconds of each push, and from its end to the first answer of the new version."""
    image = f"{host}/bench{poll_s}/models:stable"
    release(folder / "models", image, megabytes, 1)
    flags = ("--model-control-mode=poll", f"--repository-poll-secs={poll_s}", f"--repository-cache={folder / 'cache'}")
    with server(f"oci://{image}", folder / "log", *flags) as address, triton.InferenceServerClient(address) as client:
        for version in range(2, rounds + 2):
            time.sleep(poll_s * version / (rounds + 1))  # at another moment between two polls
            begun_s = time.monotonic()
            release(folder / "models", image, megabytes, version)
            pushed_s = time.monotonic()
            while answer(client) != version:
                if time.monotonic() > pushed_s + MAX_WAIT_S:
                    raise SystemExit(f"not served after {MAX_WAIT_S} s: {(folder / 'log').read_text()[-2000:]}")
                time.sleep(0.02)
            yield pushed_s - begun_s, time.monotonic() - pushed_s


def release(models: Path, image: str, megabytes: int, version: int) -> None:
    """Write a version of the model, and push it."""
    folder = models / "times" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (models / "times" / "config.pbtxt").write_text(CONFIG)
    (folder / "model.py").write_text(MODEL.replace("VERSION", str(version)))
    (folder / "weights.bin").write_bytes(np.random.default_rng(version).bytes(megabytes * 1_000_000))
    command = [sys.executable, "-m", "conch", "repo", "pack", str(models), image]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def answer(client: triton.InferenceServerClient) -> float:
    """Return the version that answers."""
    tensor = triton.InferInput("X", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    return float(client.infer("times", [tensor]).as_numpy("Y")[0])


@contextmanager
def registry(program: str, folder: Path) -> Iterator[str]:
    """Run a registry; yield its address."""
    host = f"127.0.0.1:{free_port()}"
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: '{host}'}}\n"
        f"storage: {{filesystem: {{rootdirectory: '{folder / 'registry'}'}}}}\n"
    )
    with running([program, "serve", str(config)], f"http://{host}/v2/", folder / "registry.log"):
        yield host


@contextmanager
def server(url: str, log: Path, *flags: str) -> Iterator[str]:
    """Run Conch; yield its HTTP address."""
    ports = [free_port() for _ in range(3)]
    command = [sys.executable, "-m", "conch", "serve", f"--model-repository={url}", *flags]
    command += [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)]
    with running(command, f"http://127.0.0.1:{ports[0]}/v2/health/ready", log):
        yield f"127.0.0.1:{ports[0]}"


@contextmanager
def running(command: list[str], url: str, log: Path) -> Iterator[None]:
    """Run a program; its address answers inside the block."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            deadline_s = time.monotonic() + MAX_WAIT_S
            while True:
                try:
                    urllib.request.urlopen(url, timeout=5).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > deadline_s:
                        raise SystemExit(f"{command[0]} does not answer: {log.read_text()[-2000:]}") from None
                    time.sleep(0.05)
            yield
        finally:
            process.terminate()


def free_port() -> int:
    """Return a port that no other program uses now."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return int(holder.getsockname()[1])


if __name__ == "__main__":
    typer.run(bench)
