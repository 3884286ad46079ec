"""How often verdicts are right and intervals cover the truth, on servers with known laws.

`python -m tests.unit.measure.bench.statistics.verdict_table [RUNS]` prints the cases that docs/benchmarking.md sums up.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from conch.measure.bench.measurement import Effect, Level, Measurement
from conch.measure.bench.records import Records
from conch.measure.bench.report.comparison import ConditionOutcome, decide, effect_of, parse_condition
from conch.measure.bench.statistics.comparison import effect
from conch.measure.bench.statistics.quantities import QUANTITIES
from conch.measure.bench.statistics.steady_state import steadiness
from conch.measure.bench.statistics.stopping_rule import StoppingRule
from conch.measure.bench.statistics.summary import summarize
from tests.unit.measure.bench.statistics import synthetic_servers as servers
from tests.unit.measure.bench.statistics.recorded import NO_CHUNKS, settings_of

Trial = Callable[[np.random.Generator], bool]
Seed = tuple[int, int]
# Trials that ask different questions about the same runs follow each other; this many of their runs are kept.
_KEPT_RUNS = 100


def measure(records: Records, end_s: float, **more: object) -> Measurement:
    return summarize(records, NO_CHUNKS, settings_of(end_s, **more))  # type: ignore[arg-type]


def codes(measured: Measurement) -> set[str]:
    return {note.code for note in measured.notes}


def seed_of(rng: np.random.Generator) -> Seed:
    """Return the seed of a generator that `share_right` made, and that nothing was drawn from yet."""
    return tuple(rng.bit_generator.seed_seq.entropy)  # type: ignore[attr-defined, return-value]


@lru_cache(_KEPT_RUNS)
def measured_independent(seed: Seed, law: servers.Law, duration_s: float) -> Measurement:
    return measure(servers.independent(np.random.default_rng(seed), law, duration_s=duration_s), duration_s)


@lru_cache(_KEPT_RUNS)
def measured_queue(seed: Seed, load: float, duration_s: float) -> Measurement:
    return measure(servers.mm1(np.random.default_rng(seed), load, duration_s=duration_s), duration_s)


def covers(law: servers.Law, key: str, duration_s: float = 30) -> Trial:
    """Return a trial: does the interval of a percentile, of the mean or of the rate contain the truth?"""

    def trial(rng: np.random.Generator) -> bool:
        measured = measured_independent(seed_of(rng), law, duration_s)
        assert measured.latency is not None
        if key == "throughput":
            estimate, truth = measured.throughput, 200.0
        elif key == "mean":
            estimate, truth = measured.latency.mean, law.mean
        else:
            estimate, truth = measured.latency.percentiles[key], law.quantile(float(key) / 100)
        return estimate.low is not None and estimate.high is not None and estimate.low <= truth <= estimate.high

    return trial


def covers_queue(key: str, load: float, duration_s: float) -> Trial:
    def trial(rng: np.random.Generator) -> bool:
        latency = measured_queue(seed_of(rng), load, duration_s).latency
        assert latency is not None
        if key == "mean":
            estimate, truth = latency.mean, 1 / (200 / load - 200)
        else:
            estimate, truth = latency.percentiles[key], servers.mm1_quantile(load, 200, float(key) / 100)
        return estimate.low is not None and estimate.high is not None and estimate.low <= truth <= estimate.high

    return trial


def notes_only(
    allowed: set[str], make: Callable[[np.random.Generator], Records], end_s: float, **more: object
) -> Trial:
    """Return a trial: has a run without fault no note but the allowed ones?"""

    def trial(rng: np.random.Generator) -> bool:
        records = make(rng)
        client = servers.health_of(records, 0.3)
        return codes(measure(records, end_s, client=client, **more)) <= allowed

    return trial


def notes(
    code: str, make: Callable[[np.random.Generator], Records], end_s: float, cpu: float = 0.3, **more: object
) -> Trial:
    def trial(rng: np.random.Generator) -> bool:
        records = make(rng)
        return code in codes(measure(records, end_s, client=servers.health_of(records, cpu), **more))

    return trial


def stall_is_visible(rng: np.random.Generator) -> bool:
    """Stalls of 1 s in 10 s: P95 of the open loop is that of a user who comes at any time; the closed loop hides it.

    A tenth of the time is stalled, so half of the waits of P95 are beyond 0.5 s. Both must report the stalls.
    """
    stalls = np.arange(rng.uniform(1, 5), 60, 10.0)
    opened = measure(servers.stalled_open(rng, stalls, 1.0, 200, 60), 60)
    closed = measure(servers.stalled_closed(rng, stalls, 1.0, 20, 60), 60, is_open_loop=False)
    assert opened.latency is not None
    assert closed.latency is not None
    truth = 0.5
    seen = abs(opened.latency.percentiles["95"].value - truth) < 0.15
    hidden = closed.latency.percentiles["95"].value < 0.1 * truth
    return seen and hidden and "stalls" in codes(opened) and "stalls" in codes(closed)


def warm_up_is_cut(rng: np.random.Generator) -> bool:
    """A warm-up of 4 time constants in 10 s: the steady part must begin between 2 s and 20 s."""
    records = servers.warming(rng, servers.LOGNORMAL, 10)
    start = records["intended_ns"].min()
    done = (records["done_ns"] - start) * 1e-9
    steady = steadiness(done, (records["done_ns"] - records["intended_ns"]) * 1e-9, (0.0, 60.0))
    return steady is not None and steady.since_s is not None and 2 <= steady.since_s <= 20


def steady_at_once(law: servers.Law) -> Trial:
    def trial(rng: np.random.Generator) -> bool:
        records = servers.independent(rng, law)
        start = records["intended_ns"].min()
        done = (records["done_ns"] - start) * 1e-9
        steady = steadiness(done, (records["done_ns"] - records["intended_ns"]) * 1e-9, (0.0, 30.0))
        return steady is not None and steady.since_s == 0

    return trial


def stops_with_the_truth(percentile: float, precision: float, law: servers.Law) -> Trial:
    """Return a trial: does the interval at which the rule stops contain the truth?"""

    def trial(rng: np.random.Generator) -> bool:
        rule = StoppingRule(percentile, precision)
        records = servers.independent(rng, law, 1000, 400)
        values = (records["done_ns"] - records["intended_ns"]) * 1e-9
        times = (records["intended_ns"] - records["intended_ns"].min()) * 1e-9
        count = 200
        while count < len(values):
            if rule.due(count) and rule.look(values[:count], times[:count], float(times[count])):
                last = rule.last
                assert last is not None
                assert last.low is not None
                assert last.high is not None
                return last.low <= law.quantile(percentile / 100) <= last.high
            count = int(count * 1.05) + 1
        return False

    return trial


def slower(records: Records, factor: float) -> Records:
    changed = records.copy()
    changed["done_ns"] = changed["intended_ns"] + ((records["done_ns"] - records["intended_ns"]) * factor).astype(int)
    return changed


@lru_cache(2 * _KEPT_RUNS)
def rounds_of(seed: Seed, side: int, factor: float, rounds: int = 6) -> list[Measurement]:
    """Return rounds of A (side 0) or B, in which the machine is up to 10 % slower from round to round, for both."""
    rng = np.random.default_rng(seed)
    measurements = list[Measurement]()
    for _ in range(rounds):
        machine = 1 + 0.1 * rng.random()
        pair = [servers.independent(rng, servers.LOGNORMAL, 200, 10) for _ in range(2)]
        measurements.append(measure(slower(pair[side], machine * factor), 10))
    return measurements


def compared(rng: np.random.Generator, factor: float) -> Effect | None:
    seed = seed_of(rng)
    return effect("p90", rounds_of(seed, 0, 1.0), rounds_of(seed, 1, factor))


def ab_verdict(factor: float, expected: str) -> Trial:
    def trial(rng: np.random.Generator) -> bool:
        change = compared(rng, factor)
        return change is not None and change.verdict == expected

    return trial


def ab_covers(factor: float) -> Trial:
    def trial(rng: np.random.Generator) -> bool:
        measured_effect = compared(rng, factor)
        assert measured_effect is not None
        low, high = measured_effect.change.low, measured_effect.change.high
        return low is not None and high is not None and low <= factor - 1 <= high

    return trial


@lru_cache(2 * _KEPT_RUNS)
def measured_side(seed: Seed, side: int, factor: float, load: float | None) -> Measurement:
    """Return the measurement of A (side 0) or B, which is slower by a factor."""
    rng = np.random.default_rng(seed)
    for _ in range(side + 1):
        if load is None:
            records = servers.independent(rng, servers.LOGNORMAL, 500, 60)
        else:
            records = servers.mm1(rng, load, 500, 60)
    return replace(measure(slower(records, factor), 60), level=Level("rate", 1, "1"))


def gate(condition: str, factor: float, is_alarm: bool, load: float | None = None) -> Trial:
    """Return a trial: is the result of the gate on two documents of one run each the expected one?"""

    def trial(rng: np.random.Generator) -> bool:
        seed = seed_of(rng)
        quantity = QUANTITIES["p99"]
        a = quantity.read(measured_side(seed, 0, 1.0, load))
        b = quantity.read(measured_side(seed, 1, factor, load))
        difference = None if a is None or b is None else effect_of(quantity, "1", a, b)
        assert difference is not None
        (decision,) = decide([parse_condition(condition)], [difference])
        return (decision.outcome is ConditionOutcome.HOLDS) == is_alarm

    return trial


def trials() -> Iterator[tuple[str, Trial, float]]:
    """Yield each kind with its trial and the least share of runs in which it must be right."""
    for law in servers.LAWS:
        for key in ("50", "99", "mean"):
            yield f"interval covers: {law.name}, {key}", covers(law, key), 0.93
    yield "interval covers: exponential, 99.9", covers(servers.EXPONENTIAL, "99.9", 60), 0.93
    yield "interval covers: throughput, Poisson", covers(servers.EXPONENTIAL, "throughput"), 0.93
    for load, duration_s, least in ((0.5, 60, 0.92), (0.8, 600, 0.90)):
        for key in ("50", "99", "mean"):
            yield f"interval covers: M/M/1 at {100 * load:.0f} %, {key}", covers_queue(key, load, duration_s), least
    for law in servers.LAWS:
        allowed = {"few-samples", "bimodal"} if law is servers.BIMODAL else {"few-samples"}
        good = notes_only(allowed, lambda rng, law=law: servers.independent(rng, law), 30)
        yield f"no fault reported: {law.name}, open loop", good, 0.95
        closed = notes_only(
            {*allowed, "in-flight", "unfinished"},
            lambda rng, law=law: servers.closed_loop(rng, law),
            30,
            is_open_loop=False,
        )
        yield f"no fault reported: {law.name}, closed loop", closed, 0.95
        yield f"steady from the start: {law.name}", steady_at_once(law), 0.95
    queue = notes_only({"few-samples"}, lambda rng: servers.mm1(rng, 0.8), 60)
    yield "no fault reported: M/M/1 at 80 %", queue, 0.95
    yield "bimodal latency found", notes("bimodal", lambda rng: servers.independent(rng, servers.BIMODAL), 30), 0.95
    yield "stalls visible in the open loop only", stall_is_visible, 0.95
    yield (
        "drift of 30 % found",
        notes("not-steady", lambda rng: servers.drifting(rng, servers.LOGNORMAL, 0.3), 60),
        0.95,
    )
    yield "overload (110 %) found", notes("not-steady", lambda rng: servers.mm1(rng, 1.1), 60), 0.95
    yield "warm-up cut off", warm_up_is_cut, 0.95
    saturated = notes("client-bottleneck", lambda rng: servers.saturated_client(rng, servers.LOGNORMAL), 30)
    yield "saturated client found (lag)", saturated, 0.95
    busy = notes("client-bottleneck", lambda rng: servers.independent(rng, servers.LOGNORMAL), 30, 0.97)
    yield "saturated client found (CPU)", busy, 0.95
    yield "restart found", notes("server-restart", lambda rng: servers.restarted(rng, servers.LOGNORMAL), 30), 0.95
    yield "p90 ±5 %: interval at the stop covers", stops_with_the_truth(90, 0.05, servers.LOGNORMAL), 0.93
    yield "p99 ±5 %: interval at the stop covers", stops_with_the_truth(99, 0.05, servers.EXPONENTIAL), 0.93
    yield "A/A in 6 rounds: undecided", ab_verdict(1.0, "undecided"), 0.97
    yield "A/B in 6 rounds, 10 % slower: worse", ab_verdict(1.10, "worse"), 0.95
    yield "A/B in 6 rounds: interval covers 10 %", ab_covers(1.10), 0.93
    yield "gate p99 > +5 %, A/A: no alarm", gate("p99 > +5 %", 1.0, False), 0.98
    yield "gate p99 > +0 %, A/A: no alarm", gate("p99 > +0 %", 1.0, False), 0.98
    yield "gate p99 > +5 %, exactly 5 % slower: no alarm", gate("p99 > +5 %", 1.05, False), 0.98
    yield "gate p99 > +0 %, A/A, M/M/1 at 80 %: no alarm", gate("p99 > +0 %", 1.0, False, 0.8), 0.97
    yield "gate p99 > +5 %, 20 % slower: alarm", gate("p99 > +5 %", 1.20, True), 0.95


def share_right(trial: Trial, runs: int, seed: int = 0) -> float:
    return sum(trial(np.random.default_rng((seed, run))) for run in range(runs)) / runs


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    for name, trial, least in trials():
        if wanted in name:
            share = share_right(trial, runs)
            print(f"| {name} | {100 * share:.1f} % |{'' if share >= least else ' BELOW'}", flush=True)


if __name__ == "__main__":
    main()
