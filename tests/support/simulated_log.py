"""Event logs of a simulated model: arrivals and computing times go in, with the batcher's own decision."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from conch.domain.events.log import EventLog
from conch.domain.scheduling.batching import BatchRules, Run, decide
from conch.domain.scheduling.waiting import Waiting

US, MS = 1000, 1_000_000
SMALL = 48_000  # bytes


@dataclass
class Arrival:
    """A request: when it is queued, its bytes, and what is known of its client's call (durations in ns)."""

    queued: int
    bytes: int = SMALL
    send: int = 0
    read: int = 0
    cache_hit: bool = False


@dataclass
class SimulatedModel:
    """A model version; `compute` returns the computing time of a batch that starts at a time."""

    name: str = "detector"
    instances: int = 1
    rules: BatchRules = field(default_factory=lambda: BatchRules(1, frozenset(), 0, single=True))
    compute: Callable[[int, Sequence[Arrival]], int] = lambda _start, batch: 10 * MS * len(batch)
    cpu_wait: Callable[[int], int] = lambda _start: 0
    down: Sequence[tuple[int, int]] = ()  # of all instances


@dataclass
class Rows:
    """Rows of a log by kind."""

    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    numbers: Any = field(default_factory=lambda: count(1))

    def add(self, table: str, /, **cells: Any) -> dict[str, Any]:
        """Add a row."""
        self.tables.setdefault(table, []).append(cells)
        return cells

    def log(self, end: int = 0, **header: Any) -> EventLog:
        """Return the log, read at `end`, by default after the last time in it."""
        order = {"requests": "done", "batches": "released", "exchanges": "drained", "pauses": "ended"}
        for kind, column in order.items():
            self.tables.get(kind, []).sort(key=lambda row: row[column])
        last = max((value for rows in self.tables.values() for row in rows for value in row.values()
                    if type(value) is int), default=0)  # fmt: skip
        return EventLog.of_rows(self.tables, monotonic_ns=end or last, **header)


class _Queued(Waiting):
    def __init__(self, arrival: Arrival, number: int) -> None:
        super().__init__(1)
        self.arrival, self.number, self.queued = arrival, number, arrival.queued


def serve(model: SimulatedModel, arrivals: Sequence[Arrival], rows: Rows | None = None, parent: int = 0) -> Rows:
    """Run a model on arrivals; add rows of its requests, batches and calls."""
    rows = rows or Rows()
    free = dict.fromkeys(range(model.instances), 0)
    waiting = list[_Queued]()
    coming = [_Queued(arrival, next(rows.numbers)) for arrival in sorted(arrivals, key=lambda item: item.queued)]
    hits = [queued for queued in coming if queued.arrival.cache_hit]
    for hit in hits:
        _add_request(rows, model, hit, parent, started=0, done=hit.queued + 50 * US)
    coming = [queued for queued in coming if not queued.arrival.cache_hit]
    for start, end in model.down:
        for instance in free:
            common = {"model": model.name, "version": 1, "instance": f"{model.name}_{instance}"}
            rows.add("instances", **common, time=start, change="down")
            rows.add("instances", **common, time=end, change="up")
    now = coming[0].queued if coming else 0
    while coming or waiting:
        while coming and coming[0].queued <= now:
            waiting.append(coming.pop(0))
        instance = min(free, key=lambda number: free[number])
        until = max(end for start, end in (*model.down, (0, 0)) if start <= now < end or end == 0)
        earliest = max(free[instance], until)
        if not waiting:
            now = coming[0].queued
            continue
        if earliest > now:
            now = min(earliest, coming[0].queued) if coming else earliest
            continue
        decision = decide(waiting, model.rules, now)
        if not isinstance(decision, Run):
            now = min(decision.until, coming[0].queued) if coming else decision.until
            continue
        taken, waiting = waiting[: decision.number], waiting[decision.number :]
        free[instance] = _run(rows, model, instance, taken, now, len(waiting), parent)
    return rows


def _run(
    rows: Rows, model: SimulatedModel, instance: int, taken: Sequence[_Queued], now: int, left: int, parent: int
) -> int:
    number = next(rows.numbers)
    waited = model.cpu_wait(now)
    input_done = now + 20 * US
    infer_done = input_done + model.compute(now, [queued.arrival for queued in taken]) + waited
    oldest = min(queued.queued for queued in taken)
    why_now = "single" if model.rules.single else "delay over" if now - oldest >= model.rules.delay_ns > 0 else "full"
    rows.add(
        "batches", number=number, model=model.name, version=1, instance=f"{model.name}_{instance}", members=len(taken),
        size=len(taken), why_now=why_now, waiting=left, formed=now, started=now, input_done=input_done,
        infer_done=infer_done, released=infer_done, cpu_wait_ns=waited,
    )  # fmt: skip
    for queued in taken:
        _add_request(rows, model, queued, parent, started=now, done=infer_done + 10 * US, batch=number,
                     input_done=input_done, infer_done=infer_done)  # fmt: skip
    return infer_done


def _add_request(
    rows: Rows, model: SimulatedModel, queued: _Queued, parent: int, *, started: int, done: int, **times: int
) -> None:
    arrival = queued.arrival
    received = arrival.queued - 30 * US
    exchange = 0 if parent else next(rows.numbers)
    rows.add(
        "requests", number=queued.number, parent=parent, exchange=exchange, model=model.name, version=1, outcome="ok",
        batch_size=1, cache_hit=int(arrival.cache_hit), shape=f"IMAGE UINT8 [{arrival.bytes}]",
        input_bytes=arrival.bytes, received=received, queued=arrival.queued, started=started, done=done, **times,
    )  # fmt: skip
    if not parent:
        rows.add(
            "exchanges", number=exchange, request=queued.number, protocol="http",
            first_byte=received - arrival.send, received=received - arrival.send, body_done=received,
            decoded=received + 10 * US, answered=done, encoded=done + 5 * US, written=done + 10 * US,
            drained=done + 10 * US + arrival.read, status=200,
        )  # fmt: skip
