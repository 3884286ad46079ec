"""Cost of limits for each request: `python -m benchmarks.limits [--rounds N] [--seconds N]`.

One server is asked for its identity model from 16 connections, with limits and without in alternation: they are set and
removed over `/v2/limits` between the runs, so that all runs are of the same processes. No request is over a limit.
"""

import json
import random
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.load import wrk
from benchmarks.harness.machine import CHECKOUT, machine
from benchmarks.harness.payloads import Payload, Wire, encode
from benchmarks.harness.peers import Conch, Ports, Server
from benchmarks.harness.repositories import MODELS, compose
from benchmarks.harness.workloads import echo, vector

CONNECTIONS = 16
FAR = 1_000_000
TENANT = "x-tenant"
# Name → limits, and whether requests have a tenant.
CASES: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "off": ([], False),
    "one limit of the model": ([{"model": "identity"}], False),
    "limits of model and tenants": ([{"model": "identity"}, {"model": "identity", "tenant": "*"}], True),
    "limits of server, model, version and tenants": (
        [{}, {"model": "*"}, {"model": "*", "version": "*"}, {"tenant": "*"}, {"model": "*", "tenant": "*"}],
        True,
    ),
}


class ComparedConch(Conch):
    """Conch with further flags, of an interpreter if one is given."""

    def __init__(self, install: ConchInstall, python: Path | None, *more: str) -> None:
        super().__init__(install)
        self._python = python
        self._more = more

    def command(self, repository: Path) -> list[str]:
        """Return the command of `Conch`, of another interpreter if one is given."""
        command = super().command(repository)
        return [str(self._python or command[0]), *command[1:]]

    def flags(self, ports: Ports) -> list[str]:
        """Return the ports and the further flags."""
        return [*super().flags(ports), *self._more]


def bench(
    rounds: Annotated[int, typer.Option(min=2, help="Runs of each case.")] = 9,
    seconds: Annotated[int, typer.Option(min=1, help="Seconds of a run.")] = 3,
    python: Annotated[
        Path | None, typer.Option(help="Interpreter of an installed Conch, instead of a new one.")
    ] = None,
) -> None:
    """Print rate and CPU time of each case, and their ratios to those without limits in the same round."""
    install = ConchInstall(CHECKOUT, CHECKOUT / ".bench")
    if python is None:
        install.ensure()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="conch-bench-") as name:
        folder = Path(name)
        compose({"identity": MODELS / "identity"}, folder / "models", only_python=False)
        conch = ComparedConch(install, python, f"--limits-tenant-header={TENANT}")
        with Server(conch, folder / "models", folder / "log") as server:
            runs = measure(server, folder, rounds, seconds)
    console.print(machine())
    console.print(table(runs, "limits"))


def measure(server: Server, folder: Path, rounds: int, seconds: int) -> dict[str, list[tuple[float, float]]]:
    """Return rate in requests/s and CPU time in µs per request of each case and round."""
    payload = encode(echo("identity", vector(batched=True)), Wire.BINARY)
    body = folder / "body"
    body.write_bytes(payload.body)
    wrk(server.http_address, payload, body, CONNECTIONS, seconds)
    runs: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
    order = list(CASES)
    for _ in range(rounds):
        random.shuffle(order)
        for case in order:
            limits, has_tenant = CASES[case]
            _set_limits(server, [{**limit, "requests_per_second": FAR, "enforced": True} for limit in limits])
            runs[case].append(run_case(server, payload, body, seconds, has_tenant=has_tenant))
    return runs


def run_case(
    server: Server, payload: Payload, body: Path, seconds: int, *, has_tenant: bool = False
) -> tuple[float, float]:
    """Return rate in requests/s and CPU time in µs per request."""
    if has_tenant:
        payload = replace(payload, headers={**payload.headers, TENANT: "acme"})
    before = server.tree.cpu_seconds()
    load = wrk(server.http_address, payload, body, CONNECTIONS, seconds)
    return load.rate, (server.tree.cpu_seconds() - before) / load.requests * 1e6


def _set_limits(server: Server, limits: Sequence[dict[str, Any]]) -> None:
    body = json.dumps({"limits": limits}).encode()
    request = urllib.request.Request(f"http://{server.http_address}/v2/limits", body, method="PUT")
    urllib.request.urlopen(request, timeout=10).close()


def table(cases: dict[str, list[tuple[float, float]]], what: str) -> Table:
    """Return the cases, with their ratios to "off" in the same round."""
    table = Table(what, "requests/s", "rate ÷ off", "CPU µs", "CPU ÷ off")
    off = cases["off"]
    for case, runs in cases.items():
        rates = [run[0] / base[0] for run, base in zip(runs, off, strict=True)]
        times = [run[1] / base[1] for run, base in zip(runs, off, strict=True)]
        table.add_row(
            case,
            f"{median(run[0] for run in runs):,.0f}",
            f"{median(rates):.3f} ({min(rates):.3f}–{max(rates):.3f})",
            f"{median(run[1] for run in runs):.2f}",
            f"{median(times):.3f} ({min(times):.3f}–{max(times):.3f})",
        )
    return table


if __name__ == "__main__":
    typer.run(bench)
