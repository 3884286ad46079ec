"""What metrics cost: scrapes of many models beside Triton, requests during scrapes, and metrics and traces per request.

`python -m benchmarks.scrapes [--models N …] [--rounds N] [--seconds N] [--peer triton|conch]`. Beyond the first, the
models are ensembles of it, so that Triton, which starts a process for each Python model, can serve a thousand.
"""

import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.load import Load, wrk
from benchmarks.harness.machine import CHECKOUT
from benchmarks.harness.payloads import Payload, Wire, encode
from benchmarks.harness.peers import Conch, Peer, Server, Triton
from benchmarks.harness.repositories import compose, own
from benchmarks.harness.triton_install import TritonInstall
from benchmarks.harness.workloads import echo, vector

CONNECTIONS = 16
SCRAPE_INTERVAL_S = 0.5
START_TIMEOUT_S = 30
# What Prometheus asks for.
ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 64
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 16 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 16 ] }} ]
ensemble_scheduling {{
  step {{
    model_name: "identity"
    model_version: -1
    input_map {{ key: "INPUT0" value: "IN" }}
    output_map {{ key: "OUTPUT0" value: "OUT" }}
  }}
}}
"""
# Flags of Conch, from the cheapest.
COSTS = {
    "no /metrics": ["--allow-metrics=false"],
    "metrics": [],
    "all kinds of metrics": ["--metrics-config=histogram_latencies=true", "--metrics-config=summary_latencies=true"],
    "traces of 1 in 1000": ["--trace-config=level=TIMESTAMPS", "--trace-config=rate=1000"],
    "traces of all": ["--trace-config=level=TIMESTAMPS", "--trace-config=rate=1"],
}


@dataclass(frozen=True)
class Scrape:
    """One answer of `/metrics`."""

    seconds: float
    lines: int
    size: int


class ConchWith(Conch):
    """Conch with more flags."""

    def __init__(self, install: ConchInstall, flags: list[str]) -> None:
        super().__init__(install)
        self._flags = flags

    def command(self, repository: Path) -> list[str]:
        """Return the command line with the flags."""
        return [*super().command(repository), *self._flags]


def bench(
    models: Annotated[list[int] | None, typer.Option(help="Numbers of models.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Scrapes, and rounds of load for each set of flags.")] = 15,
    seconds: Annotated[int, typer.Option(min=1, help="Duration of a round of load.")] = 3,
    peer: Annotated[list[str] | None, typer.Option(help="Measure only this server: triton or conch.")] = None,
) -> None:
    """Print the times of scrapes by number of models, and the cost of metrics and traces for a request."""
    console = Console()
    conch = ConchInstall(CHECKOUT, CHECKOUT / ".bench")
    conch.ensure()
    peers: list[Peer] = [Conch(conch)]
    triton = TritonInstall(CHECKOUT / ".bench")
    triton.ensure()
    peers.append(Triton(triton))
    chosen = [candidate for candidate in peers if candidate.name in (peer or ("conch", "triton"))]
    with tempfile.TemporaryDirectory(prefix="conch-bench-") as folder:
        console.print(scrape_table(chosen, models or [1, 100, 1000], rounds, seconds, Path(folder)))
        if any(candidate.name == "conch" for candidate in chosen):
            console.print(cost_table(conch, max(rounds // 3, 1), seconds, Path(folder)))


def scrape_table(peers: list[Peer], numbers: list[int], rounds: int, seconds: int, folder: Path) -> Table:
    """Measure scrapes of idle servers, and the latency of requests without and with scrapes."""
    table = Table(title=f"Scrapes, and {CONNECTIONS} connections to one of the models")
    for name in ("models", "server", "scrape ms", "series", "MB", "P99 µs", "P99 µs while scraped"):
        table.add_column(name, justify="right")
    for number in numbers:
        repository = folder / f"models-{number}"
        write_models(repository, number)
        for peer in peers:
            with Server(peer, repository, folder / "log") as server:
                first_scrape(server)
                scrapes = [scrape(server) for _ in range(rounds)]
                quiet = load(server, folder, seconds)
                with scraping(server):
                    scraped = load(server, folder, seconds)
            table.add_row(
                str(number),
                peer.name,
                f"{statistics.median(taken.seconds for taken in scrapes) * 1000:.1f}",
                str(scrapes[-1].lines),
                f"{scrapes[-1].size / 1e6:.2f}",
                f"{quiet.p99_us:.0f}",
                f"{scraped.p99_us:.0f}",
            )
    return table


def cost_table(install: ConchInstall, rounds: int, seconds: int, folder: Path) -> Table:
    """Measure CPU time and rate of requests with each set of flags, in turns."""
    repository = folder / "cost"
    write_models(repository, 1)
    rates: dict[str, list[float]] = {name: [] for name in COSTS}
    cpu: dict[str, list[float]] = {name: [] for name in COSTS}
    for _ in range(rounds):
        for name, flags in COSTS.items():
            traced = [f"--trace-config=triton,file={folder / 'trace'}"] if name.startswith("traces") else []
            with Server(ConchWith(install, [*flags, *traced]), repository, folder / "log") as server:
                load(server, folder, 1)
                before = server.tree.cpu_seconds()
                run = load(server, folder, seconds)
                cpu[name].append((server.tree.cpu_seconds() - before) / run.requests * 1e6)
                rates[name].append(run.rate)
    table = Table(title=f"Cost for a request of 16 numbers, {CONNECTIONS} connections, medians of {rounds} rounds")
    for name in ("with", "requests/s", "CPU µs/request", "relative to the first"):
        table.add_column(name, justify="right")
    first = statistics.median(cpu["no /metrics"])
    for name in COSTS:
        spent = statistics.median(cpu[name])
        table.add_row(name, f"{statistics.median(rates[name]):,.0f}", f"{spent:.1f}", f"{spent / first - 1:+.1%}")
    return table


def write_models(repository: Path, number: int) -> None:
    """Write the identity model, and ensembles of it until there are `number` models."""
    compose(own(identity="identity"), repository, only_python=True)
    for index in range(2, number + 1):
        (repository / f"ensemble_{index}" / "1").mkdir(parents=True)
        (repository / f"ensemble_{index}" / "config.pbtxt").write_text(ENSEMBLE.format())


def scrape(server: Server) -> Scrape:
    """Read `/metrics` once, as Prometheus does."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.ports.metrics}/metrics", headers={"Accept": ACCEPT, "Accept-Encoding": "gzip"}
    )
    begin = time.perf_counter()
    with urllib.request.urlopen(request, timeout=60) as response:
        body = response.read()
    seconds = time.perf_counter() - begin
    return Scrape(seconds, sum(not line.startswith(b"#") for line in body.splitlines()), len(body))


def first_scrape(server: Server) -> None:
    """Wait for the port of the metrics, on which Triton listens after it is ready."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            scrape(server)
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def load(server: Server, folder: Path, seconds: int) -> Load:
    """Send requests to the identity model."""
    payload: Payload = encode(echo("identity", vector(batched=True)), Wire.BINARY)
    body = folder / "body"
    body.write_bytes(payload.body)
    return wrk(server.http_address, payload, body, CONNECTIONS, seconds)


@contextmanager
def scraping(server: Server) -> Iterator[None]:
    """Scrape at an interval in another thread."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(SCRAPE_INTERVAL_S):
            scrape(server)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    typer.run(bench)
