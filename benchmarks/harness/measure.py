"""Interleaved measurement: every round visits every peer, so that what the machine does meanwhile hits both alike."""

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import grpc
from tritonclient.utils import InferenceServerException

from benchmarks.harness.answers import grpc_answer_bytes, server_version, verify
from benchmarks.harness.figures import ALONE, Figure, Result
from benchmarks.harness.load import Load, LoadError, h2load, run_program, wrk
from benchmarks.harness.payloads import Payload, Wire, encode
from benchmarks.harness.peers import Peer, PeerError, Server
from benchmarks.harness.regions import SharedQuestion
from benchmarks.harness.repositories import Models, compose
from benchmarks.harness.workloads import LoadWork, StartWork, Work

MEASURE_ERRORS = (PeerError, LoadError, AssertionError, InferenceServerException, grpc.RpcError, OSError)
MEGABYTE = 1e6
PROBES_PER_CONNECTION = 10


@dataclass(frozen=True)
class Schedule:
    """How long to measure: a warm-up for each peer, then `rounds` rounds of `seconds` each for each peer."""

    rounds: int
    seconds: int
    warm_up_seconds: int


@dataclass(frozen=True)
class Sample:
    """What one round of one peer saw, and what it cost there."""

    load: Load
    cpu_seconds: float
    memory_bytes: int


Take = Callable[[int], Sample]
"""Puts load on a peer for about the given number of seconds."""


class Bench:
    """Runs works on peers, with all files under `directory`; `progress` is called with the present step."""

    def __init__(
        self, peers: Sequence[Peer], schedule: Schedule, directory: Path, progress: Callable[[str], None]
    ) -> None:
        self._peers = peers
        self._schedule = schedule
        self._directory = directory
        self._progress = progress
        self.versions: dict[str, str] = {}
        """The version that each peer gave of itself, filled as servers start."""

    def run(self, works: Sequence[Work]) -> Iterator[Result]:
        """Yield the result of each work as it is done. Errors of a server or a load run are in the result."""
        for _, group in groupby(works, key=lambda work: (type(work), work.models)):
            together = list(group)
            if isinstance(together[0], StartWork):
                yield from (self._start_work(work) for work in together if isinstance(work, StartWork))
            else:
                yield from self._load_works([work for work in together if isinstance(work, LoadWork)])

    def _load_works(self, works: Sequence[LoadWork]) -> Iterator[Result]:
        with ExitStack() as running:
            try:
                servers = [running.enter_context(self._server(peer, works[0].models)) for peer in self._peers]
                self.versions |= {server.peer.name: server_version(server) for server in servers}
            except MEASURE_ERRORS as error:
                yield from (Result(work.name, [], work.targets, error=str(error)) for work in works)
                return
            for work in works:
                yield self._load_work(work, servers)

    def _load_work(self, work: LoadWork, servers: Sequence[Server]) -> Result:
        result = Result(work.name, load_figures(work), work.targets)
        try:
            with ExitStack() as shared:
                takes = {server.peer.name: self._prepare(work, server, shared) for server in servers}
                if work.alone is not None:
                    takes[ALONE] = partial(_take_alone, work.alone, work.in_flight)
                for number in range(1, self._schedule.rounds + 1):
                    for name, take in takes.items():
                        self._progress(f"{work.name}: round {number} of {self._schedule.rounds}, {name}")
                        note(result, work, name, take(self._schedule.seconds))
                for server in servers:
                    verify(server, work.question, work.wire)
        except MEASURE_ERRORS as error:
            result.error = str(error)
        return result

    def _prepare(self, work: LoadWork, server: Server, shared: ExitStack) -> Take:
        """Verify one answer, warm the server up, and return how to run the load for some seconds.

        What it keeps in shared memory for that is given back by `shared`.
        """
        self._progress(f"{work.name}: verify and warm up {server.peer.name}")
        verify(server, work.question, work.wire)
        if work.wire.is_shared:
            payload = shared.enter_context(SharedQuestion(work.question, server, work.wire)).payload()
        else:
            payload = encode(work.question, work.wire, work.messages)
        body = self._directory / f"{work.name}-{server.peer.name}.body"
        body.write_bytes(payload.body)
        load = _load_run(server, work, payload, body)
        load(self._schedule.warm_up_seconds)
        return partial(_take, server, load)

    def _start_work(self, work: StartWork) -> Result:
        ready = Figure("ready", "s", higher_is_better=False)
        memory = Figure("memory", "MB", higher_is_better=False)
        processes = Figure("processes", "", higher_is_better=False)
        result = Result(work.name, [ready, memory, processes], work.targets)
        rounds = min(self._schedule.rounds, work.rounds)
        try:
            for number in range(1, rounds + 1):
                for peer in self._peers:
                    self._progress(f"{work.name}: start {number} of {rounds}, {peer.name}")
                    with self._server(peer, work.models) as server:
                        verify(server, work.question, Wire.BINARY)
                        self.versions[peer.name] = server_version(server)
                        ready.add(peer.name, server.ready_seconds)
                        memory.add(peer.name, server.tree.proportional_set_bytes() / MEGABYTE)
                        processes.add(peer.name, len(server.tree.processes()))
        except MEASURE_ERRORS as error:
            result.error = str(error)
        return result

    def _server(self, peer: Peer, models: Models) -> Server:
        repository = self._directory / f"{peer.name}-repository"
        shutil.rmtree(repository, ignore_errors=True)
        compose(models, repository, only_python=peer.only_python)
        return Server(peer, repository, log=self._directory / f"{peer.name}.log")


class CountedLoad:
    """A load with a number of requests: those that fill the given time at the last measured rate."""

    def __init__(self, load: Callable[[int], Load], first: int) -> None:
        self._load = load
        self._first = first
        self._rate = 0.0

    def __call__(self, seconds: int) -> Load:
        """Run for about `seconds`; the first run sends `first` requests before, to measure the rate."""
        if not self._rate:
            self._rate = self._load(self._first).rate
        load = self._load(max(self._first, math.ceil(self._rate * seconds)))
        self._rate = load.rate
        return load


def load_figures(work: LoadWork) -> list[Figure]:
    """Return empty figures for `work`, the one that counts first."""
    figures = [
        Figure("rate", "answers/s", higher_is_better=True),
        Figure("bandwidth", "MB/s", higher_is_better=True),
        Figure("median latency", "µs", higher_is_better=False),
        Figure("p99 latency", "µs", higher_is_better=False),
        Figure("cpu", "µs/answer", higher_is_better=False),
        Figure("memory", "MB", higher_is_better=False),
    ]
    return sorted(figures, key=lambda figure: figure.name != work.counts)


def note(result: Result, work: LoadWork, peer: str, sample: Sample) -> None:
    """Add one round of `peer` to the figures."""
    load = sample.load
    answers = work.messages * work.question.responses
    values = {
        "rate": load.rate * answers,
        "bandwidth": load.rate * work.messages * work.question.input_bytes / MEGABYTE,
        "median latency": load.median_us,
        "p99 latency": load.p99_us,
        "cpu": sample.cpu_seconds / (load.requests * answers) * 1e6,
        "memory": sample.memory_bytes / MEGABYTE,
    }
    for figure in result.figures:
        figure.add(peer, values[figure.name])


def _take(server: Server, load: Callable[[int], Load], seconds: int) -> Sample:
    before = server.tree.cpu_seconds()
    seen = load(seconds)
    cpu_seconds = server.tree.cpu_seconds() - before
    server.check_alive()
    return Sample(seen, cpu_seconds, server.tree.proportional_set_bytes())


def _take_alone(work: str, callers: int, seconds: int) -> Sample:
    """Run `benchmarks.harness.alone` in a separate process, which has ended when the others are measured."""
    printed = run_program([sys.executable, "-m", "benchmarks.harness.alone", work, str(callers), str(seconds)], seconds)
    figures = json.loads(printed)
    cpu_seconds, memory_bytes = figures.pop("cpu_seconds"), figures.pop("memory_bytes")
    return Sample(Load(**figures), cpu_seconds, memory_bytes)


def _load_run(server: Server, work: LoadWork, payload: Payload, body: Path) -> Callable[[int], Load]:
    if work.wire.is_http:
        return partial(wrk, server.http_address, payload, body, work.in_flight)
    answer_bytes = grpc_answer_bytes(server, payload) * payload.answers
    load = partial(h2load, server.grpc_address, payload, body, work.in_flight, answer_bytes=answer_bytes)
    return CountedLoad(load, PROBES_PER_CONNECTION * work.in_flight)
