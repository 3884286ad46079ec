"""The load generator seen from the controller: processes forked from it, each with a share of the load."""

import contextlib
import gc
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from array import array
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from conch.machine.cores import usable_cores
from conch.measure.bench.generator import ClosedLoop, LoadPlan, OpenLoop, Transport
from conch.measure.bench.load.connection_factory import CONNECTIONS_PER_SOURCE, ConnectionFactory, reach
from conch.measure.bench.load.controller_link import FRAME_HEAD, ControllerLink, GcPauses
from conch.measure.bench.load.delays import percentile_s
from conch.measure.bench.load.load_loop import UNLIMITED, LoadLoop, LoadShare
from conch.measure.bench.load.machine_health import MachineCounters, machine_counters
from conch.measure.bench.measurement import ClientHealth
from conch.measure.bench.records import CHUNK, RECORD, Chunks, Collected, Records, join_records

_S = 1_000_000_000
_START_DELAY_NS = 20_000_000
_RECEIVE_BYTES = 1 << 20
_MAX_ERRORS = 100
# What a process keeps free of its descriptors.
_SPARE_DESCRIPTORS = 64
# The loop leaves no reference cycles behind, scripts may: collect seldom, since it takes time with many requests.
_GC_THRESHOLD = 100_000
# One process serves about this much, so that a few users do not take several processes.
_IN_FLIGHT_PER_PROCESS = 128
_RATE_PER_PROCESS = 8_000
_GRPC_REQUESTS_PER_CONNECTION = 100
_MAX_INITIAL_CONNECTIONS = 64


@dataclass(slots=True)
class _Process:
    """A process of the generator, and what it has reported."""

    number: int
    pid: int
    sock: socket.socket
    received: bytearray = field(default_factory=bytearray)
    connections: int | None = None
    cause: str = ""
    in_flight: int = 0
    ended: bool = False
    reaped: bool = False
    cpu_ns: int = 0
    cpu_wait_ns: int | None = None
    gc_pauses: int = 0
    before: tuple[int, int, int] = (0, 0, 0)  # these three at the last look at the health


class ProcessLoad:
    """A load that runs in processes forked from this one. Start it before threads."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._processes: list[_Process] = []
        self._records: list[bytes] = []
        self._chunks: list[bytes] = []
        self._errors: list[str] = []
        self._lags: dict[int, int] = {}
        self._cpu_waits: dict[int, int] = {}
        self._loop_lag_max_ns = 0
        self._gc_pause_max_ns = 0
        self._health_since_ns = 0
        self._machine: MachineCounters | None = None

    def start(self) -> None:
        """Fork, connect, and begin. Raises ConnectionError with address and cause if nothing can be opened."""
        plan = self._plan
        address = reach(plan.endpoint, plan.connect_timeout_s)
        raise_descriptor_limit()
        count = plan.processes or processes_needed(plan)
        divided = shares(plan, count)
        check_descriptors(plan, max(share.connections for share in divided))
        for share in divided:
            self._fork(share, address)
        deadline = time.monotonic() + plan.connect_timeout_s + 1
        while any(process.connections is None for process in self._processes) and time.monotonic() < deadline:
            self._read(deadline - time.monotonic())
        if not any(process.connections for process in self._processes):
            causes = {process.cause for process in self._processes if process.cause}
            self.close()
            raise ConnectionError(f"cannot connect to {plan.endpoint.place}: {'; '.join(causes) or 'timeout'}")
        self._machine = machine_counters()
        # Before the start: this process may be descheduled after it, while the others use CPU time.
        self._health_since_ns = time.monotonic_ns()
        start_ns = self._health_since_ns + _START_DELAY_NS
        if plan.on_start is not None:
            plan.on_start(start_ns)
        self._command("go", start_ns)

    def collect(self, timeout_s: float) -> Collected:
        """Wait for up to `timeout_s` and return what has come in. Raises RuntimeError if a process died."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._read(max(0.0, deadline - time.monotonic()))
            if time.monotonic() >= deadline or all(process.ended for process in self._processes):
                break
        records, chunks = self._taken()
        errors = tuple(self._errors[:_MAX_ERRORS])
        self._errors = []
        in_flight = sum(process.in_flight for process in self._processes)
        return Collected(records, chunks, in_flight, errors, all(process.ended for process in self._processes))

    def stop(self, grace_s: float) -> None:
        """Send nothing more; requests in flight after `grace_s` become UNFINISHED.

        Continue to call `collect` until it says `ended`.
        """
        self._command("stop", int(grace_s * _S))

    def health(self) -> ClientHealth:
        """Return how the processes kept up since the last call of `health`."""
        now = time.monotonic_ns()
        wall = max(1, now - self._health_since_ns)
        self._health_since_ns = now
        machine = machine_counters()
        before, self._machine = self._machine or machine, machine
        used, waits, pauses = [], [], 0
        for process in self._processes:
            cpu_ns, wait_ns, collected = process.before
            used.append(process.cpu_ns - cpu_ns)
            pauses += process.gc_pauses - collected
            if process.cpu_wait_ns is not None:
                waits.append(process.cpu_wait_ns - wait_ns)
            process.before = (process.cpu_ns, process.cpu_wait_ns or 0, process.gc_pauses)
        lags, self._lags = self._lags, {}
        cpu_waits, self._cpu_waits = self._cpu_waits, {}
        loop_lag, self._loop_lag_max_ns = self._loop_lag_max_ns, 0
        gc_pause, self._gc_pause_max_ns = self._gc_pause_max_ns, 0
        return ClientHealth(
            processes=len(self._processes),
            cpu_ratio=min(1.0, max(used, default=0) / wall),
            cpu_cores=sum(used) / wall,
            send_lag_p50_s=percentile_s(lags, 0.5),
            send_lag_p99_s=percentile_s(lags, 0.99),
            loop_lag_max_s=loop_lag / _S,
            gc_pauses=pauses,
            gc_pause_max_s=gc_pause / _S,
            steal_ratio=machine.steal_ratio(before),
            throttled_s=machine.throttled_since(before),
            pressure_ratio=machine.pressure_ratio(before),
            cpu_wait_ratio=min(1.0, max(waits) / wall) if waits else None,
            cpu_wait_p50_s=percentile_s(cpu_waits, 0.5) if waits else None,
            cpu_wait_p99_s=percentile_s(cpu_waits, 0.99) if waits else None,
        )

    def close(self) -> None:
        """End all processes at once, in any state."""
        for process in self._processes:
            process.ended = True
            process.sock.close()
            if not process.reaped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, 0)
                process.reaped = True

    def _fork(self, share: LoadShare, address: tuple[int, tuple[object, ...]]) -> None:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():  # threads of numpy's, which hold no lock that matters here
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            for process in self._processes:
                process.sock.close()
            ours.close()
            _run_process(self._plan, share, address, theirs)
        theirs.close()
        ours.setblocking(False)
        self._processes.append(_Process(share.process, pid, ours))

    def _command(self, name: str, value: int) -> None:
        for process in self._processes:
            if not process.ended:
                with contextlib.suppress(OSError):  # `collect` reports a process that has died
                    process.sock.send(json.dumps([name, value]).encode() + b"\n")

    def _read(self, timeout_s: float) -> None:
        """Wait for reports, and read those that are there."""
        poller = select.poll()
        running = {process.sock.fileno(): process for process in self._processes if not process.ended}
        for descriptor in running:
            poller.register(descriptor, select.POLLIN)
        if running:
            for descriptor, _ in poller.poll(max(0.0, timeout_s) * 1000):
                self._receive(running[descriptor])

    def _receive(self, process: _Process) -> None:
        try:
            data = process.sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._died(process)
        process.received += data
        while len(process.received) >= FRAME_HEAD.size:
            text, records, chunks = FRAME_HEAD.unpack_from(process.received)
            if len(process.received) < FRAME_HEAD.size + text + records + chunks:
                return
            at = FRAME_HEAD.size
            values = json.loads(process.received[at : at + text])
            at += text
            if records:
                self._records.append(bytes(process.received[at : at + records]))
                self._chunks.append(bytes(process.received[at + records : at + records + chunks]))
            del process.received[: at + records + chunks]
            self._take(process, values)

    def _take(self, process: _Process, values: dict[str, Any]) -> None:
        if "fatal" in values:
            self.close()
            raise RuntimeError(f"process {process.number} of the load generator failed:\n{values['fatal']}")
        if "ready" in values:
            process.connections = values["ready"]
            process.cause = values["cause"]
            return
        process.in_flight = values["in_flight"]
        process.cpu_ns = values["cpu_ns"]
        process.cpu_wait_ns = values["cpu_wait_ns"]
        process.gc_pauses = values["gc_pauses"]
        self._errors += values["errors"]
        for counts, added in ((self._lags, values["lags"]), (self._cpu_waits, values["cpu_waits"])):
            for bucket, count in added:
                counts[bucket] = counts.get(bucket, 0) + count
        self._loop_lag_max_ns = max(self._loop_lag_max_ns, values["loop_lag_max_ns"])
        self._gc_pause_max_ns = max(self._gc_pause_max_ns, values["gc_pause_max_ns"])
        if values["ended"]:
            process.ended = True
            process.sock.close()
            os.waitpid(process.pid, 0)
            process.reaped = True

    def _died(self, process: _Process) -> NoReturn:
        _, status = os.waitpid(process.pid, 0)
        process.reaped = True
        self.close()
        code = os.waitstatus_to_exitcode(status)
        cause = signal.Signals(-code).name if code < 0 else f"status {code}"
        raise RuntimeError(f"process {process.number} of the load generator ended with {cause}")

    def _taken(self) -> tuple[Records, Chunks]:
        """Return the rows received so far, their `chunks_from` counted from the first of all chunks."""
        rows = [np.frombuffer(part, RECORD) for part in self._records]
        chunks = [np.frombuffer(part, CHUNK) for part in self._chunks]
        self._records = []
        self._chunks = []
        return join_records(zip(rows, chunks, strict=True))


def _run_process(
    plan: LoadPlan, share: LoadShare, address: tuple[int, tuple[object, ...]], sock: socket.socket
) -> NoReturn:
    """Be a process of the generator until it ends."""
    status = 1
    try:
        gc.freeze()  # garbage of the parent may own threads and processes that are not this process's to end
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's, which then stops the load
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        pauses = GcPauses()
        link = ControllerLink(sock, pauses)
        try:
            factory = _factory(plan, address)
            if connection_limit(plan) > CONNECTIONS_PER_SOURCE:
                factory.use_sources_from(share.process * math.ceil(share.connections / CONNECTIONS_PER_SOURCE))
            loop = LoadLoop(share, factory, link, select.epoll())
            gc.collect()
            gc.freeze()
            gc.set_threshold(_GC_THRESHOLD, 20, 100)
            gc.callbacks.append(pauses.observe)
            loop.run()
            loop.finish()
            status = 0
        except Exception:
            link.fatal(traceback.format_exc())
    finally:
        os._exit(status)


def _factory(plan: LoadPlan, address: tuple[int, tuple[object, ...]]) -> ConnectionFactory:
    if plan.endpoint.transport != Transport.GRPC:
        return ConnectionFactory(plan.endpoint, address, plan.check)
    from conch.measure.bench.load.grpc.factory import GrpcConnectionFactory  # a load over HTTP/1.1 needs no HPACK

    per_connection = math.ceil(_in_flight(plan) / connection_limit(plan))
    return GrpcConnectionFactory(plan.endpoint, address, max(_GRPC_REQUESTS_PER_CONNECTION, per_connection), plan.check)


def processes_needed(plan: LoadPlan) -> int:
    """Return how many processes a load takes: at most one for each core, but as many as descriptors demand."""
    connections = connection_limit(plan)
    if isinstance(plan.pacing, ClosedLoop):
        busy = plan.pacing.users / _IN_FLIGHT_PER_PROCESS
    else:
        times = plan.pacing.times_s
        busy = len(times) / max(1e-9, float(times[-1])) / _RATE_PER_PROCESS if len(times) else 1
    per_process = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS)
    return max(1, min(math.ceil(busy), usable_cores()), math.ceil(connections / per_process))


def raise_descriptor_limit() -> None:
    """Raise the limit of open files as far as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_descriptors(plan: LoadPlan, connections: int) -> None:
    """Raise ConnectionError if a process cannot have as many connections as a closed loop opens."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if isinstance(plan.pacing, ClosedLoop) and connections > limit - _SPARE_DESCRIPTORS:
        raise ConnectionError(
            f"{connections:,} connections per process exceed the limit of {limit:,} open files: "
            f"raise it with `ulimit -Hn`, or use at least {processes_needed(plan)} processes"
        )


def connection_limit(plan: LoadPlan) -> int:
    """Return how many connections a load may open."""
    if plan.connections is not None:
        return plan.connections
    if plan.endpoint.transport == Transport.GRPC:
        return math.ceil(_in_flight(plan) / _GRPC_REQUESTS_PER_CONNECTION)
    return _in_flight(plan)


def _in_flight(plan: LoadPlan) -> int:
    return plan.pacing.users if isinstance(plan.pacing, ClosedLoop) else plan.pacing.in_flight


def shares(plan: LoadPlan, processes: int) -> list[LoadShare]:
    """Divide a plan among processes: users, arrivals, connections and requests in turn."""
    pacing = plan.pacing
    connections = connection_limit(plan)
    processes = min(processes, connections)
    times = np.zeros(0)
    indexes = None
    if isinstance(pacing, OpenLoop):
        times = pacing.times_s
        indexes = pacing.requests
    divided = []
    for number in range(processes):
        own_times = array("q", np.rint(times[number::processes] * _S).astype(np.int64).tobytes())
        users = _part(pacing.users, number, processes) if isinstance(pacing, ClosedLoop) else 0
        most = _part(connections, number, processes)
        divided.append(
            LoadShare(
                number,
                processes,
                plan.source,
                users=users,
                think_ns=int(pacing.think_s * _S) if isinstance(pacing, ClosedLoop) else 0,
                open_loop=isinstance(pacing, OpenLoop),
                times_ns=own_times,
                request_indexes=None
                if indexes is None
                else array("q", indexes[number::processes].astype(np.int64).tobytes()),
                connections=most,
                initial_connections=most if isinstance(pacing, ClosedLoop) else min(most, _MAX_INITIAL_CONNECTIONS),
                requests=UNLIMITED if plan.requests is None else _part(plan.requests, number, processes),
                timeout_ns=int(plan.timeout_s * _S),
                connect_timeout_ns=int(plan.connect_timeout_s * _S),
            )
        )
    return divided


def _part(whole: int, number: int, parts: int) -> int:
    return whole // parts + (1 if number < whole % parts else 0)
