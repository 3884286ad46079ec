"""Processor time of the core and of frontend processes per small request and per streamed token.

    python -m benchmarks.frontends 1 2

starts a server for each number of frontend processes, and prints the rows of the table in docs/frontend-processes.md.

    python -m benchmarks.frontends --cores

pins the server to one core, then to one more, up to all. The client has the last core, which it shares with the server
where that has all. It prints throughput for each, and what the processor times project for up to 16 cores, and draws
both into docs/images/frontends.svg.

Times are those of the scheduler's counters (/proc/<pid>/task/*/schedstat) divided by answers. Rates, medians and times
suffer where other programs share the cores: compare rows of one run.
"""

import json
import os
import re
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.machine import CHECKOUT
from conch.base.report.axis import Axis
from conch.base.report.chart import Chart, ChartPoint, ChartSeries, svg_file

_WARM_UP_S, _WINDOW_S = 0.7, 3.0
_STREAMS = 64
_CONNECTIONS = 64  # of the client that finds the throughput
_PROJECTED_CORES = (1, 2, 4, 8, 16)
_INSTALL = ConchInstall(CHECKOUT, CHECKOUT / ".bench")
_PICTURE = CHECKOUT / "docs" / "images" / "frontends.svg"
_IDENTITY = """name: "echo" backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""


def main() -> None:
    """Print a row for each load of each server, or throughput by cores."""
    _INSTALL.ensure()
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder, "models")
        _write(models / "echo", _IDENTITY)
        _write(models / "talker", 'name: "talker" backend: "scripted"')
        script = {"reply": "again " * 3000, "step_ms": 10}
        (models / "talker" / "1" / "model.json").write_text(json.dumps(script))
        if sys.argv[1:] == ["--cores"]:
            _by_cores(models, Path(folder, "log"))
            return
        print("| Load | Processes | Answers/s | Median, µs | Core, µs each | Frontends, µs each |")
        print("|---|---:|---:|---:|---:|---:|")
        for processes in map(int, sys.argv[1:] or ["1", "2"]):
            with _served(models, processes, Path(folder, "log")) as (port, pids):
                for connections in (1, 16, 64):
                    _show(
                        f"JSON, {connections} connection{'s' if connections > 1 else ''}",
                        processes,
                        _requests(port, pids, connections),
                    )
                _show(f"tokens, {_STREAMS} streams", processes, _tokens(port, pids))


def _by_cores(models: Path, log: Path) -> None:
    """Print throughput on pinned cores with the projection, and draw the picture."""
    cores = sorted(os.sched_getaffinity(0))
    measured, core_us, frontends_us = {}, 0.0, 0.0
    print("| Cores | Client | Processes | Answers/s | Core, µs each | Frontends, µs each |")
    print("|---:|---|---:|---:|---:|---:|")
    for count in range(1, len(cores) + 1):
        for processes in (1, max(count, 2)):
            os.sched_setaffinity(0, cores[:count])
            with _served(models, processes, log) as (port, pids):
                os.sched_setaffinity(0, cores[-1:])
                rate, _, core, others = _requests(port, pids, _CONNECTIONS)
            client = "on one of them" if count == len(cores) else "on another core"
            print(f"| {count} | {client} | {processes} | {rate:,.0f} | {core:.1f} | {others:.1f} |", flush=True)
            measured[count, processes > 1] = rate
            if processes > 1:
                core_us, frontends_us = core, others
    print("\nProjected from the processor times of the last row, not measured:\n\n| Cores | Answers/s |\n|---:|---:|")
    # One core at most is the core's process; the work of the frontends divides.
    projected = {count: min(1e6 / core_us, count * 1e6 / (core_us + frontends_us)) for count in _PROJECTED_CORES}
    for count, rate in projected.items():
        print(f"| {count} | {rate:,.0f} |")
    single, several = [
        [ChartPoint(count, rate) for (count, many), rate in measured.items() if many is kind] for kind in (False, True)
    ]
    series = [
        ChartSeries("projected", [ChartPoint(*point) for point in projected.items()], color=2, dashed=True),
        ChartSeries("one process", single, "dots", color=1),
        ChartSeries("frontends", several, "dots", color=0),
    ]
    title = "Small JSON requests by cores of the server"
    _PICTURE.write_text(svg_file([Chart(title, Axis("cores"), Axis("requests/s"), series)]))


def _write(folder: Path, config: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)


@contextmanager
def _served(models: Path, processes: int, log: Path) -> Iterator[tuple[int, list[int]]]:
    """Run a server; yield its HTTP port, and the core's process with the frontends'."""
    flags = [f"--model-repository={models}", f"--frontend-processes={processes}", "--http-address=127.0.0.1"]
    flags += ["--http-port=0", "--metrics-port=0", "--allow-grpc=false"]
    with log.open("wb") as output:
        server = subprocess.Popen([str(_INSTALL.python), "-m", "conch", "serve", *flags], stderr=output)
    try:
        started, text = None, ""
        while started is None or '"models"' not in text:
            time.sleep(0.1)
            text = log.read_text()
            started = re.search(r"HTTPService at \S*:(\d+)", text)
        children = psutil.Process(server.pid).children()
        frontends = [child.pid for child in children if "frontend " in " ".join(child.cmdline())]
        yield int(started[1]), [server.pid, *frontends]
    finally:
        server.terminate()
        server.wait()


def _cpu_ns(pid: int) -> int:
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def _post(path: str, document: object) -> bytes:
    body = json.dumps(document).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def _connected(port: int, number: int, message: bytes) -> Iterator[tuple[select.epoll, dict[int, socket.socket]]]:
    poll, connections = select.epoll(), {}
    for _ in range(number):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections[connection.fileno()] = connection
        poll.register(connection, select.EPOLLIN)
        connection.sendall(message)
    try:
        yield poll, connections
    finally:
        for connection in connections.values():
            connection.close()


class _Window:
    """Counts answers and processor time after the warm-up."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._begin = time.perf_counter() + _WARM_UP_S
        self._before: list[int] = []
        self.answers = 0
        self.latencies: list[float] = []

    def open(self) -> bool:
        """Return whether to continue."""
        now = time.perf_counter()
        if not self._before and now >= self._begin:
            self._before = [_cpu_ns(pid) for pid in self._pids]
            self._begin, self.answers, self.latencies = now, 0, []
        return now < self._begin + _WINDOW_S or not self._before

    def figures(self) -> list[float]:
        """Return rate, median in µs, and µs of the core and of the frontends for each answer."""
        seconds = time.perf_counter() - self._begin
        core, *others = [_cpu_ns(pid) - before for pid, before in zip(self._pids, self._before, strict=True)]
        median = statistics.median(self.latencies) * 1e6 if self.latencies else 0.0
        return [self.answers / seconds, median, core / self.answers / 1e3, sum(others) / self.answers / 1e3]


def _requests(port: int, pids: Sequence[int], number: int) -> list[float]:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [16], "data": [float(value) for value in range(16)]}
    message = _post("/v2/models/echo/infer", {"inputs": [tensor]})
    with _connected(port, number, message) as (poll, connections):
        sent = dict.fromkeys(connections, time.perf_counter())
        window = _Window(pids)
        while window.open():
            for descriptor, _ in poll.poll(1):
                connection = connections[descriptor]
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
                now = time.perf_counter()
                window.answers += 1
                window.latencies.append(now - sent[descriptor])
                connection.sendall(message)
                sent[descriptor] = now
        return window.figures()


def _tokens(port: int, pids: Sequence[int]) -> list[float]:
    call = {"model": "talker", "prompt": "x", "stream": True, "max_tokens": 3000}
    with _connected(port, _STREAMS, _post("/v1/completions", call)) as (poll, connections):
        window = _Window(pids)
        while window.open():
            for descriptor, _ in poll.poll(1):
                window.answers += connections[descriptor].recv(1 << 18).count(b"data: ")
        return window.figures()


def _show(load: str, processes: int, figures: Sequence[float]) -> None:
    rate, median, core, frontends = figures
    print(f"| {load} | {processes} | {rate:,.0f} | {median:,.0f} | {core:.1f} | {frontends:.1f} |", flush=True)


if __name__ == "__main__":
    main()
