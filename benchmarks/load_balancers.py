"""Latency and processor time that HAProxy and nginx add in front of one replica.

`python -m benchmarks.load_balancers` measures without and with each, in turn, and prints medians. HAProxy and nginx
must be installed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import sleep

import psutil

from conch.operate.deployment.load_balancers import (
    BalancedReplica,
    LoadBalancer,
    haproxy_configuration,
    nginx_configuration,
)

_CONFIG = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
"""
_HOST = "127.0.0.1"
# HTTP and gRPC ports.
_PORTS = {"direct": (18730, 18731), "haproxy": (18732, 18733), "nginx": (18734, 18735)}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duration", default="2s")
    parser.add_argument("--concurrency", default="1,16")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        processes = {kind: _started(stack, kind, Path(name)) for kind in _PORTS}
        _wait_until_ready()
        rows: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
        for _ in range(options.rounds):
            for protocol in ("http", "grpc"):
                for kind, process in processes.items():
                    for level in options.concurrency.split(","):
                        row = _measured(process, kind, protocol, level, options.duration, Path(name))
                        rows[protocol, level, kind].append(row)
    print("protocol, concurrency, in front, P50 in µs (ratio), processor time of the proxy in µs per request")
    for (protocol, level, kind), values in sorted(rows.items()):
        p50, cpu = (median(column) for column in zip(*values, strict=True))
        ratio = median(
            mine[0] / direct[0] for mine, direct in zip(values, rows[protocol, level, "direct"], strict=True)
        )
        print(
            f"{protocol} {level:>3} {kind:8} {p50 * 1e6:7.0f} ({ratio:.2f}) {'' if kind == 'direct' else f'{cpu:.0f}'}"
        )


def _started(stack: ExitStack, kind: str, folder: Path) -> psutil.Process:
    http, grpc = _PORTS[kind]
    replica = BalancedReplica("a", _HOST, *_PORTS["direct"])
    balancer = LoadBalancer(
        replicas=(replica,), address=_HOST, http_port=http, grpc_port=grpc, run_folder=str(folder), access_log=False
    )
    file = folder / kind
    if kind == "direct":
        (folder / "models" / "identity" / "1").mkdir(parents=True)
        (folder / "models" / "identity" / "config.pbtxt").write_text(_CONFIG)
        flags = [f"--model-repository={folder / 'models'}", f"--http-port={http}", f"--grpc-port={grpc}"]
        command = [sys.executable, "-m", "conch", "serve", *flags, "--allow-metrics=false"]
    elif kind == "haproxy":
        file.write_text(haproxy_configuration(balancer))
        command = ["haproxy", "-db", "-f", str(file)]
    else:
        file.write_text("daemon off;\n" + nginx_configuration(balancer))
        command = ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(file)]
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return process


def _wait_until_ready() -> None:
    for http, _ in _PORTS.values():
        for attempt in range(300):
            try:
                urllib.request.urlopen(f"http://{_HOST}:{http}/v2/health/ready", timeout=5).close()
                break
            except OSError:
                if attempt == 299:
                    raise
                sleep(0.1)


def _measured(
    process: psutil.Process, kind: str, protocol: str, level: str, duration: str, folder: Path
) -> tuple[float, float]:
    """Return P50 in seconds, and µs of the process and its children per request, warm-up included."""
    port = _PORTS[kind][0 if protocol == "http" else 1]
    report = folder / "report.json"
    command = [sys.executable, "-m", "conch", "bench", f"{_HOST}:{port}", "identity", f"--protocol={protocol}"]
    before = _cpu_s(process)
    subprocess.run(
        [*command, f"--concurrency={level}", f"--duration={duration}", "--warm-up=500ms", f"--json={report}"],
        check=False,
        capture_output=True,
    )
    spent = _cpu_s(process) - before
    measurement = json.loads(report.read_text())["measurements"][0]
    requests = measurement["throughput"]["value"] * (measurement["window_s"] + measurement["warm_up_s"])
    return measurement["latency"]["percentiles"]["50"]["value"], spent / requests * 1e6


def _cpu_s(process: psutil.Process) -> float:
    times = [member.cpu_times() for member in (process, *process.children(recursive=True))]
    return sum(duration.user + duration.system for duration in times)


if __name__ == "__main__":
    main()
