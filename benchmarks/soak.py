"""Hours at half load: `python -m benchmarks.soak [--minutes 60] [--share 0.5] [--json FILE] [--log FILE]`.

A mixed repository is asked over HTTP, unary gRPC and streams, at a share of what it can do, with some mistakes, hasty
clients and reloads of a model in between. Every few seconds the server's memory, descriptors, processes and threads are
counted, and the latencies of the interval and the degradations that the server reports noted. In the end a line is laid
through each quantity, and what must not grow is flat if its slope is within a tolerance.
"""

import asyncio
import json as json_format
import os
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.harness.arrivals import DRAIN_S, TICK_S, Books, GrpcSender, HttpSender, Sender, StreamSender
from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.machine import CHECKOUT, machine
from benchmarks.harness.payloads import Question, Wire, encode
from benchmarks.harness.peers import Conch, Server
from benchmarks.harness.repositories import EXAMPLES, MODELS, compose
from benchmarks.harness.workloads import echo, vector

MEGABYTE = 1e6
NOT_FLAT = "not flat"
CAPACITY_SECONDS = 10
EVENT_LOG_BYTES = 8 << 20
SETTLE_S = 0.5  # how long the answers to what was sent in an interval are waited for
TOGETHER = 4  # requests of each kind under way while the capacity is measured
SETTLED = 0.2  # the part of the run that caches and pools are given to fill
SURE = 3.0  # standard errors that a slope must differ from zero by to be one
# What each quantity may grow by in an hour, as a part of its level.
TOLERANCES = {"memory MB": 0.02, "descriptors": 0.01, "processes": 0.01, "threads": 0.01, "median ms": 0.1}


@dataclass(frozen=True)
class Kind:
    """One kind of request, and how it is sent."""

    name: str
    sender: Sender


@dataclass
class Sample:
    """What was seen at one moment; latencies are of the interval before it."""

    hours: float
    values: dict[str, float]


@dataclass
class Interval:
    """The books of each kind of request in one interval."""

    books: dict[str, Books] = field(default_factory=dict)


@dataclass
class Totals:
    """All requests of one kind."""

    sent: int = 0
    answered: int = 0
    otherwise: Counter[str] = field(default_factory=Counter)

    def add(self, books: Books) -> None:
        """Add those of an interval, which is over."""
        self.sent += books.sent
        self.answered += len(books.waited)
        self.otherwise.update(books.broken)
        self.otherwise.update({"refused": len(books.turned_away)} if books.turned_away else {})
        self.otherwise.update({"no answer": books.open} if books.open else {})


class PollingConch(Conch):
    """Follows the changes of its repository. Its event log fills in minutes: what grows later is something else."""

    def command(self, repository: Path) -> list[str]:
        """Return the usual command line with polling and a small event log."""
        flags = ("--model-control-mode=poll", "--repository-poll-secs=5", f"--event-log-bytes={EVENT_LOG_BYTES}")
        return [*super().command(repository), *flags]


def write_repository(directory: Path) -> None:
    """Write a Python model, an ONNX model, an ensemble of Python models, a decoupled one, and one to be reloaded."""
    models = dict.fromkeys(("identity", "first", "second", "third", "reloaded"), MODELS / "identity")
    more = {"chain": MODELS / "chain", "repeat": MODELS / "repeat", "digits": EXAMPLES / "digits"}
    compose(models | more, directory, only_python=False)


def kinds(server: Server) -> list[Kind]:
    """Return what is sent."""
    http, grpc = server.http_address, server.grpc_address
    identity, chain = echo("identity", vector(batched=True)), echo("chain", vector(batched=True))
    image = np.random.default_rng(3).random((1, 8, 8), dtype=np.float32)
    digits = Question("digits", {"image": image}, "probabilities", check=lambda _: None)
    large = echo("identity", np.ones((64, 16), np.float32))
    return [
        Kind("identity, JSON", HttpSender(http, encode(identity, Wire.JSON))),
        Kind("identity, gRPC", GrpcSender(grpc, encode(identity, Wire.GRPC))),
        Kind("identity of 64, binary", HttpSender(http, encode(large, Wire.BINARY))),
        Kind("digits, binary", HttpSender(http, encode(digits, Wire.BINARY))),
        Kind("digits, gRPC", GrpcSender(grpc, encode(digits, Wire.GRPC))),
        Kind("ensemble, binary", HttpSender(http, encode(chain, Wire.BINARY))),
        Kind("ensemble, gRPC", GrpcSender(grpc, encode(chain, Wire.GRPC))),
        Kind("decoupled, stream", StreamSender(grpc, echo("repeat", vector(batched=False)))),
    ]


async def capacity(mix: Sequence[Kind]) -> float:
    """Return how many requests of each kind are answered in a second while some of each are always under way."""
    books = {kind.name: Books() for kind in mix}
    started = perf_counter()
    while (took := perf_counter() - started) < CAPACITY_SECONDS:
        for kind in mix:
            while books[kind.name].open < TOGETHER:
                kind.sender.send(books[kind.name])
        await asyncio.sleep(TICK_S)
    return min(len(book.waited) for book in books.values()) / took


class Soak:
    """One run: `rate` requests of each kind a second, for some minutes."""

    def __init__(
        self, server: Server, mix: Sequence[Kind], rate: float, interval_s: float, models: Path, console: Console
    ) -> None:
        self._server = server
        self._mix = mix
        self._rate = rate
        self._interval_s = interval_s
        self._models = models
        self._console = console
        self._interval = Interval()
        self._hasty = 0
        self._unsettled: list[tuple[str, Books]] = []
        self.skipped = 0
        self.degradations = Counter[str]()  # series of conch_degraded, and the intervals in which each was 1
        self.samples: list[Sample] = []
        self.totals = {kind.name: Totals() for kind in mix}

    async def run(self, minutes: float) -> None:
        """Load the server and watch it."""
        interval_s = self._interval_s
        loads = [asyncio.create_task(self._load(kind)) for kind in self._mix]
        others = [asyncio.create_task(work()) for work in (self._make_mistakes, self._be_hasty, self._reload)]
        for number in range(1, int(minutes * 60 / interval_s) + 1):
            await asyncio.sleep(interval_s - SETTLE_S)
            self._server.check_alive()
            done, self._interval = self._interval, Interval()
            await asyncio.sleep(SETTLE_S)
            self._note(done, number * interval_s / 3600)
            self.degradations.update(await asyncio.to_thread(_degradations, self._server))
            if self.samples and number % max(1, round(60 / interval_s)) == 0:
                told = ", ".join(f"{name} {value:,.1f}" for name, value in self.samples[-1].values.items())
                self._console.print(f"{number * interval_s / 60:5.1f} min: {told}", soft_wrap=True)
        for task in (*loads, *others):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for _ in range(int(DRAIN_S / SETTLE_S)):
            self._settle()
            if self._unsettled:
                await asyncio.sleep(SETTLE_S)
        for name, books in self._unsettled:
            self.totals[name].add(books)

    async def _load(self, kind: Kind) -> None:
        sent = 0
        started = perf_counter()
        while True:
            due = int((perf_counter() - started) * self._rate)
            books = self._interval.books.setdefault(kind.name, Books())
            # Requests missed while this process had no CPU are dropped: half load must not become overload.
            sent = max(sent, due - TOGETHER)
            while sent < due:
                kind.sender.send(books)
                sent += 1
            await asyncio.sleep(TICK_S)

    async def _make_mistakes(self) -> None:
        """Send requests that are refused."""
        url = f"http://{self._server.http_address}/v2/models/"
        for path, body in _endlessly(("identity", b"{"), ("missing", b"{}"), ("identity", b'{"inputs": []}')):
            await asyncio.to_thread(_post, f"{url}{path}/infer", body)
            await asyncio.sleep(0.5)

    async def _be_hasty(self) -> None:
        """Ask and hang up without waiting for the answer."""
        payload = encode(echo("chain", vector(batched=True)), Wire.JSON)
        head = f"POST {payload.path} HTTP/1.1\r\nHost: soak\r\nContent-Length: {len(payload.body)}\r\n\r\n".encode()
        host, port = self._server.http_address.split(":")
        while True:
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(head + payload.body)
            await asyncio.sleep(0.0005 * (self._hasty % 4))
            writer.close()
            self._hasty += 1
            await asyncio.sleep(0.25)

    async def _reload(self) -> None:
        """Change a model every minute; it is served by polling."""
        source = self._models / "reloaded" / "1" / "model.py"
        text = source.read_text()
        for number in _endlessly(*range(1000)):
            await asyncio.sleep(60)
            source.write_text(f"{text}\n# change {number}\n")

    def _note(self, done: Interval, hours: float) -> None:
        self._unsettled += done.books.items()
        self._settle()
        waited = [books.waited for books in done.books.values() if books.waited]
        answers = sum(map(len, waited))
        if answers < self._rate * len(self._mix) * self._interval_s / 2:
            self.skipped += 1  # this process, or the machine, was at a stand
            return
        values = _counts(self._server)
        # Of the server's own: how many connections there are is the clients' doing.
        values["descriptors"] -= sum(kind.sender.connections for kind in self._mix)
        values["median ms"] = float(np.mean([np.median(times) for times in waited])) * 1e3
        values["99 of 100 ms"] = float(np.percentile(np.concatenate(waited), 99)) * 1e3
        values["answers"] = answers
        self.samples.append(Sample(hours, values))

    def _settle(self) -> None:
        """Add to the totals what has been answered completely."""
        for name, books in self._unsettled:
            if not books.open:
                self.totals[name].add(books)
        self._unsettled = [(name, books) for name, books in self._unsettled if books.open]


def _endlessly(*values: Any) -> Any:
    while True:
        yield from values


def _post(url: str, body: bytes) -> None:
    with suppress(urllib.error.HTTPError):
        urllib.request.urlopen(urllib.request.Request(url, body), timeout=30).close()


def _degradations(server: Server) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports.metrics}/metrics", timeout=30) as page:
        lines: list[str] = page.read().decode().splitlines()
    return [line.rpartition(" ")[0] for line in lines if line.startswith("conch_degraded{")]


def _counts(server: Server) -> dict[str, float]:
    pids = [process.pid for process in server.tree.processes()]
    descriptors = threads = 0
    for pid in pids:
        with suppress(OSError):
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
            threads += len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    memory = server.tree.proportional_set_bytes() / MEGABYTE
    return {"memory MB": memory, "descriptors": descriptors, "processes": len(pids), "threads": threads}


@dataclass(frozen=True)
class Trend:
    """A line through the samples of one quantity: level in the middle, slope per hour and its standard error."""

    name: str
    first: float
    last: float
    level: float
    slope: float
    error: float

    @property
    def verdict(self) -> str:
        """What can be said of its growth; nothing of a quantity that may grow."""
        allowed = TOLERANCES.get(self.name)
        if allowed is None:
            return ""
        if self.slope <= allowed * self.level:
            return "flat"
        return NOT_FLAT if self.slope > SURE * self.error else "run longer to tell"


def trends(samples: Sequence[Sample]) -> list[Trend]:
    """Lay a line through each quantity, without the beginning of the run.

    Samples close to each other are alike, so that they count as fewer: those of ten are taken together.
    """
    settled = samples[int(len(samples) * SETTLED) :]
    groups = [settled[i : i + 10] for i in range(0, len(settled) - 9, 10)]
    hours = np.array([np.mean([sample.hours for sample in group]) for group in groups])
    trends = []
    for name in samples[0].values:
        series = np.array([np.mean([sample.values[name] for sample in group]) for group in groups])
        (slope, level), covariance = np.polyfit(hours - hours.mean(), series, 1, cov=True)
        error = float(np.sqrt(covariance[0, 0]))
        trends.append(Trend(name, series[0], series[-1], float(level), float(slope), error))
    return trends


def table(trends: Sequence[Trend]) -> Table:
    """Return a row for each quantity."""
    caption = f"flat: grows by no more than its tolerance an hour; {NOT_FLAT}: by more, and by {SURE:g} standard errors"
    drawn = Table(caption=caption)
    for heading in ("", "at first", "at last", "slope an hour", "tolerance", "verdict"):
        drawn.add_column(heading, justify="left" if heading in ("", "verdict") else "right")
    for finding in trends:
        allowed = TOLERANCES.get(finding.name)
        tolerance = "" if allowed is None else f"{allowed * finding.level:,.2f}"
        slope = f"{finding.slope:+,.2f} ± {finding.error:,.2f}"
        drawn.add_row(finding.name, f"{finding.first:,.2f}", f"{finding.last:,.2f}", slope, tolerance, finding.verdict)
    return drawn


async def soak(server: Server, models: Path, minutes: float, share: float, console: Console) -> Soak:
    """Measure the capacity, then run."""
    mix = kinds(server)
    rate = await capacity(mix)
    console.print(f"capacity: {rate:,.0f} requests of each of {len(mix)} kinds a second")
    await asyncio.sleep(2)
    run = Soak(server, mix, share * rate, min(10.0, minutes), models, console)
    await run.run(minutes)
    for kind in mix:
        await kind.sender.close()
    return run


def main(
    minutes: Annotated[float, typer.Option(min=1, help="How long.")] = 60,
    share: Annotated[float, typer.Option(min=0.01, help="Part of the capacity that is asked for.")] = 0.5,
    json: Annotated[Path | None, typer.Option(help="Write all samples to this file.")] = None,
    log: Annotated[Path | None, typer.Option(help="Write the server's log to this file.")] = None,
) -> None:
    """Run for long and see what grows. The exit status is 1 if something does, or if a request was not answered."""
    console = Console()
    if not console.is_terminal:
        console.width = 140
    install = ConchInstall(CHECKOUT, CHECKOUT / ".bench")
    install.ensure()
    with tempfile.TemporaryDirectory(prefix="conch-soak-") as name:
        models = Path(name) / "models"
        write_repository(models)
        with Server(PollingConch(install), models, log or Path(name) / "log") as server:
            run = uvloop.run(soak(server, models, minutes, share, console))
    fitted = trends(run.samples)
    console.print(table(fitted))
    console.print(f"{len(run.samples)} samples; {run.skipped} left out for want of answers")
    for name, total in run.totals.items():
        told = ", ".join(f"{number} {text}" for text, number in total.otherwise.items())
        console.print(f"{name}: {total.sent:,} sent, {total.answered:,} answered, {told or 'none otherwise'}")
    for series, number in run.degradations.most_common():
        console.print(f"{series} in {number} intervals", soft_wrap=True)
    if json is not None:
        samples = [{"hours": sample.hours, **sample.values} for sample in run.samples]
        json.write_text(json_format.dumps({"machine": machine(), "samples": samples}, indent=2) + "\n")
    if any(total.otherwise for total in run.totals.values()) or any(finding.verdict == NOT_FLAT for finding in fitted):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
