"""Several times the capacity: `python -m benchmarks.overload [--seconds 60] [--times 3] [--deadlines] [--json FILE]`.

The capacity is what the server answers to as many clients as keep its instances busy. In turns with measuring that,
requests arrive at a multiple of it, and what counts is how many are answered, how long those waited, and that the rest
is refused at once with a time to come again. Health and metrics are asked meanwhile. With `--deadlines`, requests have
deadlines and h2load sends them: see `benchmarks.harness.deadline_load`.
"""

import asyncio
import json as json_format
import multiprocessing
import re
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any, Self

import numpy as np
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.harness.arrivals import TICK_S, Books, GrpcSender, HttpSender, Sender, arrive
from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.deadline_load import (
    FLAGS,
    LIMITS,
    deadline_table,
    deadline_works,
    measure_deadlines,
    measure_shares,
    met,
    write_deadline_models,
)
from benchmarks.harness.machine import CHECKOUT, machine
from benchmarks.harness.payloads import Question, Wire, encode
from benchmarks.harness.peers import Conch, Server
from benchmarks.harness.repositories import MODELS, compose
from benchmarks.harness.workloads import echo, vector

GOODPUT_TARGET = 0.9
ROUNDS = 6
CAPACITY_SECONDS = 4
PENDING = re.compile(r'^nv_inference_pending_request_count\{model="(\w+)".*\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Work:
    """One model under overload: `clients` keep it busy, `bound` is the size of its queue."""

    name: str
    question: Question
    wire: Wire
    clients: int
    bound: int


@dataclass
class Measured:
    """Rates per second, round by round; times are milliseconds: median, 99th of a hundred, longest."""

    work: str
    bound: int
    capacity: list[float] = field(default_factory=list)  # before the first round and after each
    offered: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    answer_ms: list[float] = field(default_factory=list)
    refusal_ms: list[float] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)
    deepest_queue: int = 0
    without_time: int = 0
    not_sent: int = 0
    broken: dict[str, int] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        """Answers under overload to answers at capacity, the mean of just before and just after, in order of size."""
        around = [(before + after) / 2 for before, after in pairwise(self.capacity)]
        return sorted(answered / capacity for answered, capacity in zip(self.answered, around, strict=True))

    @property
    def ratio(self) -> float:
        """The middle one."""
        return median(self.ratios)


def works() -> list[Work]:
    """Return what is measured: models that compute, one that waits, and an ensemble, over both protocols."""
    busy, sleep, chain = echo("busy", vector(batched=False)), echo("sleep", vector(batched=True)), "chain"
    return [
        Work("busy-5ms-binary", busy, Wire.BINARY, clients=16, bound=32),
        Work("busy-5ms-grpc", busy, Wire.GRPC, clients=16, bound=32),
        Work("sleep-2ms-of-4-binary", sleep, Wire.BINARY, clients=48, bound=64),
        Work("ensemble-busy-last-binary", echo(chain, vector(batched=False)), Wire.BINARY, clients=16, bound=32),
    ]


def write_repository(directory: Path) -> None:
    """Write the models with their bounds: `chain` is a quick model and then the busy one."""
    compose({"busy": MODELS / "busy", "sleep": MODELS / "sleep"}, directory, only_python=False)
    compose({"first": MODELS / "identity_unbatched", "last": MODELS / "busy"}, directory, only_python=False)
    for name, bound in (("busy", 32), ("sleep", 64), ("first", 32), ("last", 32)):
        config = directory / name / "config.pbtxt"
        text = re.sub(r"dynamic_batching.*", "", config.read_text())
        policy = f"default_queue_policy {{ max_queue_size: {bound} }}"
        # At most four together: three times what sixteen come to is more than this process can send.
        text = text.replace("max_batch_size: 16", "max_batch_size: 4")
        config.write_text(f"{text}\ndynamic_batching {{ {policy} }}\n")
    tensor = '{ name: "%s" data_type: TYPE_FP32 dims: [ 16 ] }'
    steps = " ".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "INPUT0" value: "{takes}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{gives}" }} }}'
        for model, takes, gives in (("first", "INPUT0", "middle"), ("last", "middle", "OUTPUT0"))
    )
    (directory / "chain" / "1").mkdir(parents=True)
    (directory / "chain" / "config.pbtxt").write_text(
        f'platform: "ensemble" input {tensor % "INPUT0"} output {tensor % "OUTPUT0"} ensemble_scheduling {{ {steps} }}'
    )


def sender(server: Server, work: Work) -> Sender:
    """Return a way to send the question of a work."""
    payload = encode(work.question, work.wire)
    if work.wire is Wire.GRPC:
        return GrpcSender(server.grpc_address, payload)
    return HttpSender(server.http_address, payload)


async def capacity(server: Server, work: Work) -> float:
    """Return how many requests a second are answered when `clients` always have one under way."""
    sending = sender(server, work)
    books = Books()
    started = perf_counter()
    while (took := perf_counter() - started) < CAPACITY_SECONDS:
        while books.open < work.clients:
            sending.send(books)
        await asyncio.sleep(TICK_S)
    answered = len(books.waited)
    if books.broken or books.turned_away:
        raise RuntimeError(f"{work.name}: {len(books.turned_away)} refused at capacity, broken: {books.broken[:3]}")
    await sending.close()
    return answered / took


async def overload(server: Server, work: Work, times: float, seconds: float) -> Measured:
    """Measure one work."""
    measured = Measured(work.name, work.bound, [await capacity(server, work)])
    books, sending = Books(), sender(server, work)
    seen: list[tuple[float, int]] = []
    for _ in range(ROUNDS):
        answered, refused, sent = len(books.waited), len(books.turned_away), books.sent + books.not_sent
        with _Watch(server) as watch:
            started = perf_counter()
            await arrive(sending, times * measured.capacity[-1], seconds / ROUNDS, books)
            took = perf_counter() - started
        seen += watch.seen
        measured.offered.append((books.sent + books.not_sent - sent) / took)
        measured.answered.append((len(books.waited) - answered) / took)
        measured.refused.append((len(books.turned_away) - refused) / took)
        await asyncio.sleep(0.5)
        measured.capacity.append(await capacity(server, work))
    await sending.close()
    measured.answer_ms, measured.refusal_ms = _spread(books.waited), _spread(books.turned_away)
    measured.health_ms = _spread([took for took, _ in seen])
    measured.deepest_queue = max((depth for _, depth in seen), default=0)
    measured.without_time, measured.not_sent = books.without_time, books.not_sent
    measured.broken = {text: books.broken.count(text) for text in set(books.broken)}
    return measured


@dataclass
class _Watch:
    """A process that asks for health and metrics as a probe does: this one is too busy to tell how long they take."""

    server: Server
    seen: list[tuple[float, int]] = field(default_factory=list)  # seconds for health, deepest queue

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        urls = (
            f"http://{self.server.http_address}/v2/health/ready",
            f"http://127.0.0.1:{self.server.ports.metrics}/metrics",
        )
        self._process = context.Process(target=_probe, args=(theirs, *urls))
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.send(None)
        self.seen = self._ours.recv()
        self._process.join()


def _probe(told: Connection, health: str, metrics: str) -> None:
    """Sample in this process until `told` receives a message; then send the samples."""
    seen = []
    while not told.poll(0.2):
        started = perf_counter()
        _get(health)
        took = perf_counter() - started
        seen.append((took, max(int(float(depth)) for _, depth in PENDING.findall(_get(metrics)))))
    told.send(seen)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:
        return str(response.read().decode())


def _spread(seconds: Sequence[float]) -> list[float]:
    """Return median, 99th of a hundred and maximum in milliseconds."""
    if not seconds:
        return []
    return [round(float(value) * 1e3, 2) for value in (*np.percentile(seconds, [50, 99]), max(seconds))]


def table(results: Sequence[Measured]) -> Table:
    """Return a row for each work."""
    drawn = Table(caption="medians of rates per second; times in ms: median / 99 of 100 / longest")
    headings = "work", "capacity", "offered", "answered", "ratio", "refused", "bound", "deepest"
    for heading in (*headings, "answers ms", "refusals ms", "health ms", "not sent", "wrong"):
        drawn.add_column(heading, justify="left" if heading == "work" else "right")
    for result in results:
        wrong = sum(result.broken.values()) + result.without_time
        drawn.add_row(
            result.work,
            *(f"{median(rates):,.0f}" for rates in (result.capacity, result.offered, result.answered)),
            f"{result.ratio:.2f} ({result.ratios[0]:.2f}–{result.ratios[-1]:.2f})",
            f"{median(result.refused):,.0f}",
            str(result.bound),
            str(result.deepest_queue),
            *(
                " / ".join(f"{value:.1f}" for value in times)
                for times in (result.answer_ms, result.refusal_ms, result.health_ms)
            ),
            str(result.not_sent),
            str(wrong),
        )
    return drawn


def main(
    seconds: Annotated[float, typer.Option(min=1, help="How long requests arrive too fast, for each work.")] = 60,
    times: Annotated[float, typer.Option(min=1, help="Multiple of the capacity at which they arrive.")] = 3,
    only: Annotated[str, typer.Option(help="Works whose names begin with this.")] = "",
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
    deadlines: Annotated[bool, typer.Option("--deadlines", help="Measure deadlines and shares of tenants.")] = False,
) -> None:
    """Measure overload. The exit status is 1 if a work falls short of 90 % of its capacity, or an answer was wrong.

    With `--deadlines` it is 1 below 95 % of the peak in time, or if a share is off by more than 5 %.
    """
    console = Console()
    if not console.is_terminal:
        console.width = 200
    results = []
    install = ConchInstall(CHECKOUT, CHECKOUT / ".bench")
    install.ensure()
    if deadlines:
        _measure_deadlines(Conch(install), console, times, only, json)
        return
    with tempfile.TemporaryDirectory(prefix="conch-overload-") as name:
        write_repository(Path(name) / "models")
        with Server(Conch(install), Path(name) / "models", Path(name) / "log") as server:
            for work in works():
                if work.name.startswith(only):
                    results.append(uvloop.run(overload(server, work, times, seconds)))
                    console.print(work.name)
    console.print(table(results))
    if json is not None:
        document = {"machine": machine(), "results": [{**asdict(result), "ratio": result.ratio} for result in results]}
        json.write_text(json_format.dumps(document, indent=2) + "\n")
    if any(result.ratio < GOODPUT_TARGET or result.broken or result.without_time for result in results):
        raise typer.Exit(1)


class _Limited:
    """Conch with tenants and weights."""

    only_python = False

    def __init__(self, conch: Conch, limits: Path) -> None:
        self._conch = conch
        self._limits = limits
        self.name, self.ready_path = conch.name, conch.ready_path

    def command(self, repository: Path) -> list[str]:
        return [*self._conch.command(repository), *FLAGS, f"--limits-file={self._limits}"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conch, name)


def _measure_deadlines(conch: Conch, console: Console, times: float, only: str, json: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="conch-deadlines-") as name:
        folder = Path(name)
        write_deadline_models(folder / "models")
        (folder / "limits.yaml").write_text(LIMITS)
        with Server(_Limited(conch, folder / "limits.yaml"), folder / "models", folder / "log") as server:
            works = [work for work in deadline_works() if work.name.startswith(only)]
            results = []
            for work in works:
                results.append(measure_deadlines(server, work, times))
                console.print(f"{work.name}: {results[-1].ratio:.3f}")
            shares = [
                measure_shares(server, model, weight)
                for model, weight in (("shared", 1), ("weighted", 3))
                if model.startswith(only)
            ]
    console.print(deadline_table(results, shares))
    if json is not None:
        rows = [{**asdict(result), "ratio": result.ratio} for result in results]
        document = {"machine": machine(), "results": rows, "shares": [asdict(share) for share in shares]}
        json.write_text(json_format.dumps(document, indent=2) + "\n")
    if not met(results, shares):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
