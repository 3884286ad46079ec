"""How near Conch is to the least that a server in Python costs: `python -m benchmarks.floor [--rounds N]`.

Triton, Conch and a server that only sends Conch's recorded answer (`harness/echo_server.py`) are asked for the identity
model in alternation. Client and servers share the cores, so what the client costs is part of each rate.
"""

import os
import random
import socket
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.load import wrk
from benchmarks.harness.machine import CHECKOUT, machine
from benchmarks.harness.payloads import Payload, Wire, encode
from benchmarks.harness.peers import Conch, Peer, Ports, Server, Triton
from benchmarks.harness.repositories import MODELS, compose
from benchmarks.harness.triton_install import TritonInstall
from benchmarks.harness.workloads import echo, vector

_WIRES = (Wire.JSON, Wire.BINARY)
_CONNECTIONS = (1, 16)
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Echo(Peer):
    """A server that answers with the bytes of a file."""

    answer: Path
    name: str = "echo"
    only_python: bool = True
    ready_path: str = "/"

    def command(self, repository: Path) -> list[str]:  # noqa: ARG002 - it has no models
        return [sys.executable, "-m", "benchmarks.harness.echo_server", str(self.answer)]

    def flags(self, ports: Ports) -> list[str]:
        return [str(ports.http)]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(CHECKOUT)}

    def packages(self) -> str:
        return ""


def bench(
    rounds: Annotated[int, typer.Option(min=2, help="Runs of each server.")] = 5,
    seconds: Annotated[int, typer.Option(min=1, help="Seconds of a run.")] = 3,
) -> None:
    """Print rate, median latency and CPU time of the three servers, by encoding and connections."""
    conch, triton = ConchInstall(CHECKOUT, CHECKOUT / ".bench"), TritonInstall(CHECKOUT / ".bench")
    conch.ensure()
    triton.ensure()
    console = Console()
    console.print(machine())
    with tempfile.TemporaryDirectory(prefix="conch-bench-") as name:
        folder = Path(name)
        for wire in _WIRES:
            payload = encode(echo("identity", vector(batched=True)), wire)
            body = folder / wire
            body.write_bytes(payload.body)
            with ExitStack() as running:
                servers = dict[str, Server]()
                for peer in (Triton(triton), Conch(conch)):
                    models = folder / f"{peer.name}-{wire}-models"
                    compose({"identity": MODELS / "identity"}, models, only_python=peer.only_python)
                    servers[peer.name] = running.enter_context(Server(peer, models, folder / f"{peer.name}.log"))
                answer = folder / f"{wire}.answer"
                answer.write_bytes(_recorded(servers["conch"], payload))
                servers["echo"] = running.enter_context(Server(Echo(answer), folder, folder / "echo.log"))
                for connections in _CONNECTIONS:
                    runs = _measured(servers, payload, body, connections, rounds, seconds)
                    console.print(_table(f"{wire}, {connections} connections", runs))


def _recorded(server: Server, payload: Payload) -> bytes:
    """Return the answer of a server as it was sent, in one piece."""
    fields = {**payload.headers, "Host": server.http_address, "Content-Length": str(len(payload.body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    host, port = server.http_address.split(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        connection.sendall(f"POST {payload.path} HTTP/1.1\r\n{head}\r\n".encode() + payload.body)
        answer = connection.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    return answer


def _measured(
    servers: dict[str, Server], payload: Payload, body: Path, connections: int, rounds: int, seconds: int
) -> dict[str, list[tuple[float, float, float]]]:
    """Return rate (1/s), median (µs) and CPU time per answer (µs) of each server and round, after one to warm up."""
    runs = defaultdict[str, list[tuple[float, float, float]]](list)
    order = list(servers)
    for number in range(rounds + 1):
        random.shuffle(order)
        for name in order:
            tree = servers[name].tree
            before = tree.cpu_seconds()
            load = wrk(servers[name].http_address, payload, body, connections, seconds)
            if number:
                cpu_us = (tree.cpu_seconds() - before) / load.requests * 1e6
                runs[name].append((load.rate, load.median_us, cpu_us))
    return runs


def _table(title: str, runs: dict[str, list[tuple[float, float, float]]]) -> Table:
    table = Table("server", "answers/s", "÷ triton", "median µs", "CPU µs", title=title)
    for name in ("triton", "conch", "echo"):
        rates, medians, times = zip(*runs[name], strict=True)
        ratios = [rate / base for rate, (base, _, _) in zip(rates, runs["triton"], strict=True)]
        spread = f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        table.add_row(name, f"{median(rates):,.0f}", spread, f"{median(medians):.0f}", f"{median(times):.1f}")
    return table


if __name__ == "__main__":
    typer.run(bench)
