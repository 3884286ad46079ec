"""Interleaved measurement: every round visits every peer, so that what the machine does meanwhile hits both alike."""

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import grpc
from tritonclient.utils import InferenceServerException

from benchmarks.answers import grpc_answer_bytes, server_version, verify
from benchmarks.figures import Figure, Result
from benchmarks.load import Ending, Load, LoadError, h2load, wrk
from benchmarks.payloads import Payload, Wire, encode
from benchmarks.peers import Peer, PeerError, Server
from benchmarks.repositories import Models, compose
from benchmarks.workloads import LoadWork, StartWork, Work

MEASURE_ERRORS = (PeerError, LoadError, AssertionError, InferenceServerException, grpc.RpcError, OSError)
MEGABYTE = 1e6
PROBE_STREAMS = 10


@dataclass(frozen=True)
class Schedule:
    """How long to measure: a warm-up for each peer, then `rounds` rounds of `seconds` each for each peer."""

    rounds: int
    seconds: int
    warm_up_seconds: int


class Bench:
    """Runs works on peers, with all files under `directory`; `progress` is told what happens now."""

    def __init__(
        self, peers: Sequence[Peer], schedule: Schedule, directory: Path, progress: Callable[[str], None]
    ) -> None:
        self._peers = peers
        self._schedule = schedule
        self._directory = directory
        self._progress = progress
        self.versions: dict[str, str] = {}
        """Name and version that each peer gave of itself, filled as servers start."""

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
                yield from (Result(work.name, [], error=str(error)) for work in works)
                return
            for work in works:
                yield self._load_work(work, servers)

    def _load_work(self, work: LoadWork, servers: Sequence[Server]) -> Result:
        result = Result(work.name, _load_figures(work))
        try:
            runs = [self._prepare(work, server) for server in servers]
            for number in range(1, self._schedule.rounds + 1):
                for server, run in zip(servers, runs, strict=True):
                    self._progress(f"{work.name}: round {number} of {self._schedule.rounds}, {server.peer.name}")
                    before = server.tree.cpu_seconds()
                    load = run(self._schedule.seconds)
                    cpu_seconds = server.tree.cpu_seconds() - before
                    server.check_alive()
                    _note(result, work, server, load, cpu_seconds)
        except MEASURE_ERRORS as error:
            result.error = str(error)
        return result

    def _prepare(self, work: LoadWork, server: Server) -> Callable[[int], Load]:
        """Verify one answer, warm the server up, and return how to run the load for some seconds."""
        self._progress(f"{work.name}: verify and warm up {server.peer.name}")
        verify(server, work.question, work.wire)
        payload = encode(work.question, work.wire, work.messages)
        body = self._directory / f"{work.name}-{server.peer.name}.body"
        body.write_bytes(payload.body)
        run = _load_run(server, work, payload, body)
        run(self._schedule.warm_up_seconds)
        return run

    def _start_work(self, work: StartWork) -> Result:
        ready = Figure("ready", "s", higher_is_better=False)
        memory = Figure("memory", "MB", higher_is_better=False)
        processes = Figure("processes", "", higher_is_better=False)
        result = Result(work.name, [ready, memory, processes])
        try:
            for number in range(1, self._schedule.rounds + 1):
                for peer in self._peers:
                    self._progress(f"{work.name}: start {number} of {self._schedule.rounds}, {peer.name}")
                    with self._server(peer, work.models) as server:
                        verify(server, work.question, Wire.BINARY)
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


def _load_run(server: Server, work: LoadWork, payload: Payload, body: Path) -> Callable[[int], Load]:
    if work.wire in (Wire.JSON, Wire.BINARY):
        return lambda seconds: wrk(server.http_address, payload, body, work.in_flight, seconds)
    answer_bytes = grpc_answer_bytes(server, work.question, payload.path) * payload.answers
    until = partial(h2load, server.grpc_address, payload, body, work.in_flight, answer_bytes=answer_bytes)
    if work.wire is Wire.GRPC:
        return lambda seconds: until(Ending(seconds))
    # Triton never finishes with streams that are abandoned halfway: it then hangs at its end and leaves shared memory
    # behind. So streams are counted, not timed.
    streams_per_second = until(Ending(seconds=1, requests=PROBE_STREAMS)).rate
    return lambda seconds: until(Ending(seconds, requests=math.ceil(streams_per_second * seconds)))


def _load_figures(work: LoadWork) -> list[Figure]:
    """Return empty figures for `work`, the one that counts first."""
    rate = Figure("rate", "answers/s", higher_is_better=True)
    latency = Figure("median latency", "µs", higher_is_better=False)
    others = [
        Figure("p99 latency", "µs", higher_is_better=False),
        Figure("cpu", "µs/answer", higher_is_better=False),
        Figure("memory", "MB", higher_is_better=False),
    ]
    if work.bandwidth:
        return [Figure("bandwidth", "MB/s", higher_is_better=True), rate, latency, *others]
    return [latency, rate, *others] if work.in_flight == 1 and work.messages == 1 else [rate, latency, *others]


def _note(result: Result, work: LoadWork, server: Server, load: Load, cpu_seconds: float) -> None:
    values = {
        "rate": load.rate * work.messages,
        "bandwidth": load.rate * work.question.input_bytes / MEGABYTE,
        "median latency": load.median_us,
        "p99 latency": load.p99_us,
        "cpu": cpu_seconds / (load.requests * work.messages) * 1e6,
        "memory": server.tree.proportional_set_bytes() / MEGABYTE,
    }
    for figure in result.figures:
        figure.add(server.peer.name, values[figure.name])
