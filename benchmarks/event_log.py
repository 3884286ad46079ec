"""Cost of the event log for each request: `python -m benchmarks.event_log [--rounds N] [--seconds N]`.

Two servers, with the log and without, are asked for their identity models from 16 connections in alternation.
"""

import random
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.load import wrk
from benchmarks.harness.machine import CHECKOUT, machine
from benchmarks.harness.payloads import Wire, encode
from benchmarks.harness.peers import Server
from benchmarks.harness.repositories import MODELS, compose
from benchmarks.harness.workloads import echo, vector
from benchmarks.limits import CONNECTIONS, ComparedConch, run_case, table


def bench(
    rounds: Annotated[int, typer.Option(min=2, help="Runs of each server.")] = 9,
    seconds: Annotated[int, typer.Option(min=1, help="Seconds of a run.")] = 3,
    python: Annotated[
        Path | None, typer.Option(help="Interpreter of an installed Conch, instead of a new one.")
    ] = None,
) -> None:
    """Print rate and CPU time with and without the log, and their ratios in the same round."""
    install = ConchInstall(CHECKOUT, CHECKOUT / ".bench")
    if python is None:
        install.ensure()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="conch-bench-") as name:
        folder = Path(name)
        models = folder / "models"
        compose({"identity": MODELS / "identity"}, models, only_python=False)
        without = ComparedConch(install, python, "--event-log-bytes=0")
        with (
            Server(without, models, folder / "off") as off,
            Server(ComparedConch(install, python), models, folder / "on") as on,
        ):
            runs = measure({"off": off, "on": on}, folder, rounds, seconds)
    console.print(machine())
    console.print(table(runs, "event log"))


def measure(
    servers: dict[str, Server], folder: Path, rounds: int, seconds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return rate in requests/s and CPU time in µs per request of each server and round."""
    payload = encode(echo("identity", vector(batched=True)), Wire.BINARY)
    body = folder / "body"
    body.write_bytes(payload.body)
    for server in servers.values():
        wrk(server.http_address, payload, body, CONNECTIONS, seconds)
    runs: dict[str, list[tuple[float, float]]] = {case: [] for case in servers}
    order = list(servers)
    for _ in range(rounds):
        random.shuffle(order)
        for case in order:
            runs[case].append(run_case(servers[case], payload, body, seconds))
    return runs


if __name__ == "__main__":
    typer.run(bench)
