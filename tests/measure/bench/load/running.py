"""Runs a load to its end."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from conch.measure.bench.generator import (
    ClosedLoop,
    Endpoint,
    FixedRequests,
    LoadPlan,
    OpenLoop,
    PreparedRequest,
    ScriptSource,
    Tls,
    Transport,
)
from conch.measure.bench.load.process_load import ProcessLoad
from conch.measure.bench.measurement import ClientHealth
from conch.measure.bench.records import Chunks, Records, RequestOutcome
from tests.measure.bench.load.servers import HEAD

DEADLINE_S = 60.0


@dataclass
class Ran:
    """What came in."""

    records: Records
    chunks: Chunks
    errors: list[str]
    health: ClientHealth

    @property
    def outcomes(self) -> dict[RequestOutcome, int]:
        return {RequestOutcome(code): count for code, count in Counter(self.records["outcome"].tolist()).items()}

    @property
    def latencies_s(self) -> np.ndarray:
        return (self.records["done_ns"] - self.records["intended_ns"]) / 1e9


def plan(
    port: int,
    source: ScriptSource | list[PreparedRequest] | None = None,
    pacing: ClosedLoop | OpenLoop | None = None,
    *,
    tls: Tls | None = None,
    headers: tuple[tuple[str, str], ...] = (),
    host: str = "127.0.0.1",
    timeout_s: float = 30.0,
    connections: int | None = None,
    requests: int | None = None,
) -> LoadPlan:
    """Return a plan for HTTP/1.1; without a source it sends one small request."""
    if not isinstance(source, ScriptSource):
        source = FixedRequests(source or [PreparedRequest(0, HEAD, b"{}")])
    endpoint = Endpoint(host, port, Transport.HTTP1, tls, headers)
    return LoadPlan(endpoint, source, pacing or ClosedLoop(1), timeout_s, 10.0, connections, requests)


def run(
    load_plan: LoadPlan,
    processes: int = 1,
    *,
    stop_when: Callable[[int], bool] | None = None,
    grace_s: float = 10.0,
) -> Ran:
    """Run until the load ends; stop it when `stop_when` is true of the number of records so far."""
    load = ProcessLoad(replace(load_plan, processes=processes))
    records, chunks, errors = [], [], []
    count = 0
    stopped = False
    deadline = time.monotonic() + DEADLINE_S
    load.start()
    try:
        while True:
            collected = load.collect(0.05)
            rows = collected.records.copy()
            rows["chunks_from"][rows["chunks_from"] >= 0] += sum(map(len, chunks))
            records.append(rows)
            chunks.append(collected.chunks)
            errors += collected.errors
            count += len(rows)
            if collected.ended:
                break
            if not stopped and stop_when is not None and stop_when(count):
                stopped = True
                load.stop(grace_s)
            assert time.monotonic() < deadline, f"no end after {count} requests"
        health = load.health()
    finally:
        load.close()
    return Ran(np.concatenate(records), np.concatenate(chunks), errors, health)
