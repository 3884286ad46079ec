"""Explains requests of an event log: gives each nanosecond between first and last byte a cause."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np

from conch.domain.causes.cause import NESTED
from conch.domain.causes.log_index import Groups, Interval, ModelBatches, Table
from conch.domain.causes.parts import RequestParts, TimePart, carve, clipped, joined
from conch.domain.events.layout import CHANGES, INSTANCE_CHANGES, OUTCOMES, PAUSES, WHY_NOW
from conch.domain.events.log import EventLog

_MIN_SLOW: Final = 0.1  # of the usual time: a batch within it is not slow
_MAX_DEPTH: Final = 20
_LOOK_NS: Final = 400_000_000  # within which the server sees that a process is stopped: every 200 ms, when it can
_MIN_CACHE_USED: Final = 900  # ‰: a KV cache that is about full
_MIN_HIT_SHARE: Final = 0.5  # of a model's requests, from which on a miss is an exception
_NO_DELAY: Final = tuple(WHY_NOW.index(name) for name in ("single", "idle"))
_STALL: Final = PAUSES.index("stall")
_DOWN: Final = (INSTANCE_CHANGES.index("down"),)
_STOPPED: Final = (INSTANCE_CHANGES.index("stopped"),)
_STALLED: Final = INSTANCE_CHANGES.index("stalled")
# Causes of what the event loop does or should do: a collection of garbage there delays it.
_ON_LOOP: Final = ("serialisation", "loop", "copy")
_BETWEEN: Final = "between"  # steps of an engine, until what was between them is known
_QUEUED: Final = ("busy", "ahead")
_IDLE: Final = ("mates", "sequence", "loop")  # waits although an instance is idle
_ORDINARY: Final = ("copy", "compute")
_OF_ALL: Final = ("down", "gc", "loop")  # delays of all instances


class Explainer:
    """Finds the parts of requests. Tables are sorted when they are first needed."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self._batches_of: dict[tuple[int, int], ModelBatches] = {}
        self._delays_of: dict[tuple[int, int], list[TimePart]] = {}
        self._misses: dict[tuple[int, int], bool] = {}

    def explain(self, number: int) -> RequestParts | None:
        """Return the parts of a request, None if the log has no such request."""
        rows = self._by_number.rows(number)
        return self._whole(rows[0]) if len(rows) else None

    def batch(self, number: int) -> tuple[Any, Table] | None:
        """Return a batch and its requests, None if the log has no such batch."""
        rows = self._by_batch_number.rows(number)
        return (rows[0], self._members.rows(number)) if len(rows) else None

    def root(self, number: int) -> int:
        """Return the number of the client's request on whose behalf a request was made."""
        for _ in range(_MAX_DEPTH):
            rows = self._by_number.rows(number)
            if not len(rows) or not (parent := int(rows[0]["parent"])):
                break
            number = parent
        return number

    def whole_ns(self) -> Table:
        """Return how long each request took, with its client's call where the log has it; 0 for one without an end."""
        requests, exchanges = self.log.requests, self.log.exchanges
        start, end = requests["received"], requests["done"]
        if len(exchanges):
            order = np.argsort(exchanges["number"], kind="stable")
            calls = exchanges[order]
            places = np.minimum(np.searchsorted(calls["number"], requests["exchange"]), len(calls) - 1)
            calls = calls[places]
            known = (calls["number"] == requests["exchange"]) & (requests["parent"] == 0)
            written = np.maximum(calls["drained"], calls["written"])
            start = np.where(known & (calls["first_byte"] > 0), calls["first_byte"], start)
            end = np.where(known & (end > 0), np.maximum(written, end), end)
        return np.where(end > 0, end - start, 0)

    def usual_ns(self, batch: Any) -> int:
        """Return the computing time that is usual for batches of such a size, 0 if unknown."""
        usual = self._batches(batch).usual(batch)
        return usual.for_kind or usual.for_size

    # ── one request ──

    def _whole(self, row: Any) -> RequestParts:
        end = self._end_of(row)
        calls = self._by_exchange.rows(int(row["exchange"]) or -1)
        if not len(calls):
            return self._request(row, int(row["received"]), end, 0)
        call = calls[0]
        queued = int(row["queued"] or row["done"] or end)
        parts = [
            *self._stages(row, [
                ("", int(call["first_byte"] or call["received"] or row["received"])),
                ("client_send", int(call["received"])), ("client_send", int(call["body_done"])),
                ("serialisation", int(call["decoded"])), ("serialisation", queued),
            ]),
            *self._request(row, queued, end, 0).parts,
            *self._stages(row, [
                ("", end), ("serialisation", int(call["answered"])), ("serialisation", int(call["encoded"])),
                ("serialisation", int(call["written"])), ("client_read", int(call["drained"])),
            ]),
        ]  # fmt: skip
        return self._parts(row, parts)

    def _request(self, row: Any, start: int, end: int, depth: int) -> RequestParts:
        """Return the parts between two times, without those of the client's call."""
        queued, done = int(row["queued"] or row["done"] or end), self._end_of(row)
        parts = self._stages(row, [("", int(row["received"])), ("serialisation", queued)])
        children = self._by_parent.rows(int(row["number"])) if depth < _MAX_DEPTH else self._by_parent.rows(-1)
        batches = self._by_batch_number.rows(int(row["batch"]) or -1)
        if len(batches):
            parts += self._executed(row, batches[0], children, done, depth)
        elif len(children):
            parts += self._chain(self._stages(row, [("", queued), ("loop", done)]), children, depth)
        elif row["batch"]:
            parts += self._stages(row, [("", queued), ("unrecorded", done)])
        elif row["first_token"] or row["completion_tokens"]:
            parts += self._generated(row, queued, done)
        elif OUTCOMES[row["outcome"]] == "ok":  # of the response cache, or without an execution
            parts += self._stages(row, [("", queued), ("serialisation", done)])
        else:
            parts += self._queued(row, None, queued, done)
        return self._parts(row, clipped(parts, start, end))

    def _parts(self, row: Any, parts: Iterable[TimePart]) -> RequestParts:
        """Return parts as a whole, with collections of garbage and missing processors where the event loop worked."""
        some = list(parts)
        start, end = (some[0].start, some[-1].end) if some else (int(row["received"]), int(row["received"]))
        some = carve(some, self._pauses(start, end, stalls=False), "gc", _ON_LOOP)
        waits = [(first, first + waited) for first, _, waited in self._stalls(start, end)]
        some = carve(some, waits, "cpu", ("serialisation",))
        return RequestParts(row, self._name(row["model"]), start, end, joined(some))

    def _stages(self, row: Any, times: Sequence[tuple[str, int]]) -> list[TimePart]:
        """Return parts that end at times, of which the first is the start; those that have not come are left out."""
        model, found, at = self._name(row["model"]), list[TimePart](), times[0][1]
        for cause, time in times[1:]:
            if time > at:
                found.append(TimePart(cause, at, time, model, int(row["batch"])))
                at = time
        return found

    def _end_of(self, row: Any) -> int:
        return int(row["done"] or self.log.monotonic_ns)

    # ── execution and queue ──

    def _executed(self, row: Any, batch: Any, children: Table, done: int, depth: int) -> list[TimePart]:
        queued, started = int(row["queued"]), min(int(batch["started"]) or done, done)
        parts = self._queued(row, batch, queued, max(started, queued))
        own = clipped(self._run(batch, row), max(started, queued), done)
        returned = min(int(batch["infer_done"] or batch["released"]) or done, done)  # one that failed is only released
        if len(children):
            own = [
                part if part.cause in ("copy", "gc") else part.between(part.start, part.end, "compute") for part in own
            ]
            own = self._chain(joined(own), children, depth)
        parts += own
        back = self._stages(row, [("", max(returned, started, queued)), ("copy", done)])
        return parts + self._waits_of_loop(back, ("copy",))

    def _queued(self, row: Any, batch: Any, start: int, end: int) -> list[TimePart]:
        """Return the parts of a time in the queue of a model."""
        if end <= start:
            return []
        model, name = self._batches(row), self._name(row["model"])
        preferred = int(batch["instance"]) if batch is not None else -1
        instances = sorted(model.instances, key=lambda number: number != preferred)
        down = {number: model.lasted(number, _DOWN, start, end) for number in instances}
        held = {number: dict[int, tuple[int, Any]]() for number in instances}
        begun, ended = dict[int, list[tuple[int, int, Any]]](), dict[int, list[tuple[int, int]]]()
        for number in instances:
            for first, last, row_of in model.held(number, start, end):
                begun.setdefault(first, []).append((number, last, row_of))
                ended.setdefault(last, []).append((number, int(row_of["number"])))
        times = {
            start,
            end,
            *begun,
            *ended,
            *(time for some in down.values() for interval in some for time in interval),
        }
        parts = list[TimePart]()
        for first, last in pairwise(sorted(times)):
            for number, key in ended.get(first, ()):
                held[number].pop(key, None)
            for number, until, row_of in begun.get(first, ()):
                held[number][int(row_of["number"])] = until, row_of
            blocking, idle = None, not instances
            for number in instances:
                if len(held[number]) >= model.places(number):
                    # The batch that ends first makes room.
                    blocking = blocking or min(held[number].values(), key=lambda item: item[0])
                elif not any(begin <= first < until for begin, until in down[number]):
                    idle = True
                    break
            if idle:
                parts.append(TimePart(self._idle_cause(row, batch), first, last, name))
            elif blocking is None:
                parts.append(TimePart("down", first, last, name))
            else:
                parts += self._behind(row, blocking[1], first, last)
        parts = self._sequence(row, parts, start, end)
        parts = carve(parts, self._holds(row, batch, start, end), "limiter", _IDLE)
        parts = joined(self._waits_of_loop(parts, ("loop",)))
        return joined(self._roots(row, parts)) if any(part.cause in _QUEUED for part in parts) else parts

    def _idle_cause(self, row: Any, batch: Any) -> str:
        """Return why a request waits although an instance is idle."""
        if row["correlation"]:
            return "sequence"
        return "loop" if batch is None or int(batch["why_now"]) in _NO_DELAY else "mates"

    def _behind(self, row: Any, blocking: Any, start: int, end: int) -> list[TimePart]:
        """Return the parts of a time in which a batch has the instance."""
        cause = "busy" if blocking["started"] < row["queued"] else "ahead"
        run = clipped(self._run(blocking, None), start, end)
        parts = [part.between(part.start, part.end, cause if part.cause in _ORDINARY else "") for part in run]
        # Its instance takes the next batch when the event loop has seen the end of this one.
        at = parts[-1].end if parts else start
        return [*parts, *([TimePart("loop", at, end, self._name(row["model"]))] if end > at else [])]

    def _roots(self, row: Any, parts: list[TimePart]) -> list[TimePart]:
        """Give the end of a wait in the queue to what made the queue longer, as far as it did.

        Without the delays since the queue was last empty, the requests ahead would have left it earlier by these
        delays. A queue that is as long as before a delay is not longer because of it.
        """
        model, queued = self._batches(row), int(row["queued"])
        since, ahead = model.waiting_since(queued), max(model.waiting(queued - 1), 1)
        room = whole = sum(part.ns for part in parts if part.cause in _QUEUED)
        for delay in reversed(self._delays(row)):
            first, last = delay.start, min(delay.end, queued)
            if first >= queued or last <= since or room <= 0:
                continue
            grown = 1 - min(model.waiting(first) / ahead, 1)
            share = 1 if delay.cause in _OF_ALL else 1 / max(len(model.instances), 1)
            moved = min(round((last - max(first, 0)) * share), round(whole * grown) - (whole - room), room)
            parts, room = _moved(parts, delay, moved), room - max(moved, 0)
        return parts

    def _delays(self, row: Any) -> list[TimePart]:
        """Return what kept a model's instances from their usual work, in order."""
        key = (int(row["model"]), int(row["version"]))
        if key not in self._delays_of:
            model, name, end = self._batches(row), self._name(row["model"]), self.log.monotonic_ns
            found = [
                part for batch in model.long_ones for part in self._run(batch, None) if part.cause not in _ORDINARY
            ]
            down = [model.lasted(number, _DOWN, 0, end) for number in model.instances]
            found += [TimePart("down", *interval, name) for interval in _common(down)]
            found += [TimePart("gc", *interval, name) for interval in self._pauses(0, end, stalls=False)]
            found += [TimePart("loop", *interval, name) for interval in self._pauses(0, end, stalls=True)]
            self._delays_of[key] = sorted(found, key=lambda part: part.start)
        return self._delays_of[key]

    def _sequence(self, row: Any, parts: list[TimePart], start: int, end: int) -> list[TimePart]:
        if not row["correlation"]:
            return parts
        others = self._by_correlation.rows(int(row["correlation"]))
        before = others[
            (others["number"] < row["number"]) & (others["model"] == row["model"]) & (others["done"] > start)
        ]
        until = min(int(before["done"].max()), end) if len(before) else 0
        return carve(parts, [(start, until)], "sequence", {part.cause for part in parts})

    def _run(self, batch: Any, own: Any) -> list[TimePart]:
        """Return the parts of an execution, from its start to the end of computing.

        `own` is the member whose time it is, None for a request that waits behind the batch.
        """
        name, number = self._name(batch["model"]), int(batch["number"])
        start = int(batch["started"])
        computing = int(batch["input_done"] or start)
        end = int(batch["infer_done"] or batch["released"] or self.log.monotonic_ns)
        model = self._batches(batch)
        usual = model.usual(batch)
        seen = [] if not start else model.lasted(int(batch["instance"]), _STOPPED, computing, end + _LOOK_NS)
        waited = max(int(batch["cpu_wait_ns"]), 0)
        # The process may have waited for a processor before it had the inputs: what computing does not explain.
        worked = max(int(batch["cpu_ns"]), usual.for_kind or usual.for_size)
        before = min(max(waited - max(end - computing - worked, 0), 0), computing - start)
        cpu = min(waited - before, max(end - computing - int(batch["cpu_ns"]), 0))
        work = max(end - computing - cpu, 0)
        expected, large, slow = min(usual.for_kind or usual.for_size or work, work), 0, 0
        if usual.is_large and (usual.for_kind or work) > (1 + _MIN_SLOW) * usual.for_size:
            expected = min(usual.for_size, work)
            large = min(usual.for_kind or work, work) - expected
        if (rest_ns := work - expected - large) > _MIN_SLOW * (expected + large):
            slow = rest_ns
        else:
            expected += rest_ns
        stalled = bool(start and model.stalls(int(batch["instance"]), _STALLED, start - _LOOK_NS, end))
        if stalled and not (usual.for_kind or usual.for_size):
            expected, slow = 0, slow + expected
        # A process is looked at from time to time: it was stopped a while before that was seen.
        stopped = [(max(first - _LOOK_NS, computing), min(last, end)) for first, last in seen if first < end + _LOOK_NS]
        stopped = stopped[:1] if slow else []
        waits = "hung" if stalled and not stopped else "slow"
        if stopped:
            first, last = stopped[0]
            stopped = [(max(last - slow, first), last)]
            slow -= stopped[0][1] - stopped[0][0]
        if own is None:  # others need not wait longer because of what all batches wait for a processor
            usual_wait = min(cpu, usual.cpu_wait)
            expected, cpu = expected + usual_wait, cpu - usual_wait
        ordinary = "miss" if own is not None and self._is_miss(own) else "compute"
        because = "large" if own is None or not self._is_large_one(own) else "own_large"
        if large and own is None:  # who waits behind it would not without it
            ordinary, expected, large = "large", 0, expected + large
        copied = computing - before
        parts = [TimePart("copy", start, copied, name, number), TimePart("cpu", copied, computing, name, number)]
        if copied - start > _LOOK_NS // 2:  # stopped before it had the inputs
            early = model.lasted(int(batch["instance"]), _STOPPED, start, end)
            parts = carve(parts, [(first - _LOOK_NS, last) for first, last in early], "stopped", ("copy", "cpu"))
        parts, at, rest = parts, computing, list(stopped)
        for cause, length in ((ordinary, expected), (because, large), ("cpu", cpu), (waits, slow)):
            while length > 0:
                if rest and rest[0][0] <= at:
                    parts.append(TimePart("stopped", at, rest[0][1], name, number))
                    at = rest.pop(0)[1]
                    continue
                piece = min(length, rest[0][0] - at) if rest else length
                parts.append(TimePart(cause, at, at + piece, name, number))
                at, length = at + piece, length - piece
        parts += (TimePart("stopped", max(low, at), high, name, number) for low, high in rest)
        return carve([part for part in parts if part.ns > 0], self._loadings(start, end), "loading", ("cpu", "slow"))

    def _is_large_one(self, row: Any) -> bool:
        members = self._members.rows(int(row["batch"]))
        return 2 * int(row["input_bytes"]) >= int(members["input_bytes"].sum())

    def _is_miss(self, row: Any) -> bool:
        """Whether the model's response cache answers most requests, but not this one."""
        key = (int(row["model"]), int(row["version"]))
        if key not in self._misses:
            requests = self.log.requests
            hits = requests["cache_hit"][(requests["model"] == key[0]) & (requests["version"] == key[1])]
            self._misses[key] = bool(len(hits)) and float(hits.mean()) >= _MIN_HIT_SHARE
        return self._misses[key] and not row["cache_hit"]

    def _waits_of_loop(self, parts: list[TimePart], causes: Sequence[str]) -> list[TimePart]:
        """Replace waits for the event loop by collections of garbage, missing processors and stalls in them."""
        if not parts:
            return parts
        start, end = parts[0].start, parts[-1].end
        parts = carve(parts, self._pauses(start, end, stalls=False), "gc", causes)
        for first, last, waited in self._stalls(start, end):
            parts = carve(parts, [(first, first + waited)], "cpu", causes)
            parts = carve(parts, [(first + waited, last)], "loop", causes)
        return carve(parts, self._loadings(start, end), "loading", ("cpu", "loop"))

    # ── ensembles and calls ──

    def _chain(self, parts: list[TimePart], children: Table, depth: int) -> list[TimePart]:
        """Replace the critical path of nested requests in parts: from the end back, what ended last before."""
        if not parts:
            return parts
        low, at = parts[0].start, parts[-1].end
        nested = list[TimePart]()
        spans = [(int(child["received"]), self._end_of(child), child) for child in children]
        while at > low and (spans := [span for span in spans if span[0] < at and span[1] > low]):
            place = max(range(len(spans)), key=lambda place: (min(spans[place][1], at), -spans[place][0]))
            start, end, child = spans.pop(place)
            step = self._request(child, max(start, low), min(end, at), depth + 1)
            if step.ns:
                nested.append(TimePart(NESTED, step.start, step.end, step.model, int(child["batch"]), step))
            at = min(max(start, low), at)
        found, rest = list[TimePart](), parts
        for part in reversed(nested):
            found += [*clipped(rest, low, part.start), part]
            low = part.end
        return found + clipped(rest, low, parts[-1].end)

    # ── language models ──

    def _generated(self, row: Any, queued: int, done: int) -> list[TimePart]:
        """Return the parts of a generation by the steps of its engine."""
        name = self._name(row["model"])
        first_token = min(max(int(row["first_token"] or done), queued), done)
        steps = self._steps(row)
        started = self._prefill_start(row, steps, queued, first_token)
        parts, at = list[TimePart](), queued
        for step in steps[np.searchsorted(steps["ended"], queued) : np.searchsorted(steps["started"], done)]:
            low, high = max(int(step["started"]), at), min(int(step["ended"]), done)
            if high <= low:
                continue
            parts += [TimePart(_BETWEEN, at, low, name)] if low > at else []
            # What the engine's process waited for a processor counts at the end of the step.
            waited = min(max(int(step["cpu_wait_ns"]), 0), high - low)
            parts += self._of_step(row, step, name, low, high - waited, started, first_token)
            parts.append(TimePart("cpu", high - waited, high, name))
            at = high
        if not parts:
            parts = self._stages(row, [("", queued), ("prefill", first_token), ("decode", done)])
            return carve(parts, self._engine_stalls(row, steps, queued, done), "hung", ("prefill", "decode"))
        if done > at:
            parts.append(TimePart(_BETWEEN, at, done, name))
        parts = carve(parts, self._engine_stalls(row, steps, queued, done), "hung", {part.cause for part in parts})
        parts = self._waits_of_loop(parts, (_BETWEEN,))
        parts = carve(parts, [(queued, first_token)], "prefill", (_BETWEEN,))
        return joined(carve(parts, [(first_token, done)], "decode", (_BETWEEN,)))

    def _of_step(
        self, row: Any, step: Any, name: str, low: int, high: int, started: int, first_token: int
    ) -> Iterator[TimePart]:
        bounds = [low, *(time for time in (started, first_token) if low < time < high), high]
        for start, end in pairwise(bounds):
            tokens = int(step["prefill_tokens"])
            if start < started:
                full = int(step["cache_used"]) >= _MIN_CACHE_USED
                yield TimePart("cache_wait" if full else "prefill_others" if tokens else "decode", start, end, name)
                continue
            if start < first_token:
                share = min(int(row["prompt_tokens"]) / tokens, 1.0) if tokens else 1.0
                cut, own = start + round((end - start) * share), "prefill"
            else:
                usual = self._usual_step(row) if tokens else 0
                cut, own = (min(start + usual, end) if usual else end), "decode"
            yield TimePart(own, start, cut, name)
            if end > cut:
                yield TimePart("prefill_others", cut, end, name)

    def _prefill_start(self, row: Any, steps: Table, queued: int, first_token: int) -> int:
        """Return when the steps that read a prompt began: the last before the first token that have as many tokens."""
        missing, start = max(int(row["prompt_tokens"]), 1), first_token
        place = int(np.searchsorted(steps["started"], first_token))
        while place and missing > 0 and int(steps[place - 1]["ended"]) > queued:
            place -= 1
            if tokens := int(steps[place]["prefill_tokens"]):
                missing, start = missing - tokens, int(steps[place]["started"])
        return min(max(start, queued), first_token)

    def _engine_stalls(self, row: Any, steps: Table, start: int, end: int) -> list[Interval]:
        """Return when the engine of a generation made no progress: until it finished a step, or was replaced."""
        model, found = self._batches(row), list[Interval]()
        for number in model.instances:
            for since, until in model.stalls(number, _STALLED, start - _LOOK_NS, end):
                later = steps["ended"][np.searchsorted(steps["ended"], since, "right") :]
                found.append((since, min(int(later[0]), until) if len(later) else until))
        return found

    def _usual_step(self, row: Any) -> int:
        steps = self._steps(row)
        plain = steps[steps["prefill_tokens"] == 0]
        return int(np.median(plain["ended"] - plain["started"])) if len(plain) else 0

    def _steps(self, row: Any) -> Table:
        steps: Table = self.log.steps[self.log.steps["model"] == row["model"]]
        return steps

    # ── tables ──

    def _name(self, number: int) -> str:
        return self.log.names[int(number)]

    def _batches(self, row: Any) -> ModelBatches:
        """Return the batches of the model version of a row."""
        key = (int(row["model"]), int(row["version"]))
        if key not in self._batches_of:
            batches, requests, instances = (
                table[(table["model"] == key[0]) & (table["version"] == key[1])]
                for table in (self.log.batches, self.log.requests, self.log.instances)
            )
            self._batches_of[key] = ModelBatches(
                batches[batches["started"] > 0], requests, instances, self.log.monotonic_ns
            )
        return self._batches_of[key]

    def _pauses(self, start: int, end: int, *, stalls: bool) -> list[Interval]:
        return [
            (int(row["started"]), int(row["ended"]))
            for row in self._overlapping(self._all_pauses, start, end)
            if (int(row["kind"]) == _STALL) == stalls
        ]

    def _stalls(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield start, end and time without a processor of the stalls that overlap a time."""
        for row in self._overlapping(self._all_pauses, start, end):
            if int(row["kind"]) == _STALL:
                first, last = int(row["started"]), int(row["ended"])
                yield first, last, min(max(int(row["cpu_wait_ns"]), 0), last - first)

    def _loadings(self, start: int, end: int) -> list[Interval]:
        return [(int(row["started"]), int(row["ended"])) for row in self._overlapping(self._loads, start, end)]

    def _holds(self, row: Any, batch: Any, start: int, end: int) -> list[Interval]:
        """Return when the rate limiter kept a model from a batch; for a sequence, its instance."""
        rows = self._overlapping(self._all_holds, start, end)
        rows = rows[(rows["model"] == row["model"]) & (rows["version"] == row["version"])]
        if row["correlation"] and batch is not None:
            rows = rows[rows["instance"] == batch["instance"]]
        return [(int(hold["started"]), int(hold["ended"])) for hold in rows]

    @cached_property
    def _all_holds(self) -> Table:
        holds = self.log.holds.copy()
        holds["ended"][holds["ended"] == 0] = self.log.monotonic_ns
        return _by_end(holds)

    @cached_property
    def _loads(self) -> Table:
        changes = self.log.changes
        return _by_end(changes[np.isin(changes["change"], [CHANGES.index("load"), CHANGES.index("reload")])])

    @cached_property
    def _all_pauses(self) -> Table:
        return _by_end(self.log.pauses)

    @staticmethod
    def _overlapping(table: Table, start: int, end: int) -> Table:
        """Return the rows, in the order of their ends, that overlap a time."""
        rest = table[np.searchsorted(table["ended"], start, "right") :]
        return rest[rest["started"] < end]

    @cached_property
    def _by_number(self) -> Groups:
        return Groups(self.log.requests, "number")

    @cached_property
    def _by_parent(self) -> Groups:
        return Groups(self.log.requests, "parent")

    @cached_property
    def _members(self) -> Groups:
        return Groups(self.log.requests, "batch")

    @cached_property
    def _by_batch_number(self) -> Groups:
        return Groups(self.log.batches, "number")

    @cached_property
    def _by_exchange(self) -> Groups:
        return Groups(self.log.exchanges, "number")

    @cached_property
    def _by_correlation(self) -> Groups:
        return Groups(self.log.requests, "correlation")


def _moved(parts: Sequence[TimePart], delay: TimePart, ns: int) -> list[TimePart]:
    """Give the last nanoseconds of queueing to a delay."""
    found = list[TimePart]()
    for part in reversed(parts):
        taken = min(part.ns, max(ns, 0)) if part.cause in _QUEUED else 0
        ns -= taken
        if taken:
            found.append(TimePart(delay.cause, part.end - taken, part.end, part.model, delay.batch))
        if part.ns > taken:
            found.append(part.between(part.start, part.end - taken))
    return found[::-1]


def _by_end(table: Table) -> Table:
    """Return rows in the order of their ends: a stall is noticed after collections of garbage in it."""
    found: Table = table[np.argsort(table["ended"], kind="stable")]
    return found


def _common(groups: Sequence[Sequence[Interval]]) -> list[Interval]:
    """Return when there is an interval of each group."""
    found = list(groups[0]) if groups else []
    for group in groups[1:]:
        pairs = ((max(low, start), min(high, end)) for low, high in found for start, end in group)
        found = [(low, high) for low, high in pairs if low < high]
    return found
