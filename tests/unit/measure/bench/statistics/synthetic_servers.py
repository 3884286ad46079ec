"""Servers with known laws of latency, as records. Vectorized, so that hundreds of runs take seconds."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conch.measure.bench.measurement import ClientHealth
from conch.measure.bench.records import Records, RequestOutcome
from tests.unit.measure.bench.statistics.recorded import records_of

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """A law of latency with mean 20 ms or so, and the exact values of its mean and percentiles."""

    name: str
    draw: Callable[[np.random.Generator, int], Floats]
    quantile: Callable[[float], float]
    mean: float


def _bimodal_quantile(p: float) -> float:
    from statistics import NormalDist

    normal = NormalDist()
    low, high = 1e-4, 10.0
    for _ in range(100):
        middle = math.sqrt(low * high)
        share = 0.7 * normal.cdf(math.log(middle / 0.01) / 0.2) + 0.3 * normal.cdf(math.log(middle / 0.08) / 0.2)
        low, high = (middle, high) if share < p else (low, middle)
    return low


def _bimodal(rng: np.random.Generator, count: int) -> Floats:
    centre = np.where(rng.random(count) < 0.7, 0.01, 0.08)
    return centre * np.exp(0.2 * rng.standard_normal(count))


def _normal_quantile(p: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(p)


EXPONENTIAL = Law("exponential", lambda rng, n: rng.exponential(0.02, n), lambda p: -0.02 * math.log(1 - p), 0.02)
LOGNORMAL = Law(
    "lognormal",
    lambda rng, n: 0.02 * np.exp(0.5 * rng.standard_normal(n)),
    lambda p: 0.02 * math.exp(0.5 * _normal_quantile(p)),
    0.02 * math.exp(0.125),
)
BIMODAL = Law("bimodal", _bimodal, _bimodal_quantile, math.exp(0.02) * (0.7 * 0.01 + 0.3 * 0.08))
LAWS = (EXPONENTIAL, LOGNORMAL, BIMODAL)


def poisson_times(rng: np.random.Generator, rate: float, duration_s: float) -> Floats:
    return np.sort(rng.uniform(0, duration_s, rng.poisson(rate * duration_s)))


def independent(rng: np.random.Generator, law: Law, rate: float = 200, duration_s: float = 30) -> Records:
    """Return an open loop on a server that answers all requests at the same time."""
    at = poisson_times(rng, rate, duration_s)
    return records_of(at, law.draw(rng, len(at)))


def single_server(arrivals: Floats, service: Floats) -> Floats:
    """Return the times of the answers of a queue with one server (Lindley's recursion)."""
    work = np.cumsum(service)
    before = work - service
    return work + np.maximum.accumulate(arrivals - before)


def mm1(rng: np.random.Generator, load: float, rate: float = 200, duration_s: float = 60) -> Records:
    """Return an open loop on an M/M/1 queue, whose times in the system are exponential: mean 1 / (rate / load - rate).

    It begins long before the run, so that it is stationary.
    """
    early = 20.0
    at = poisson_times(rng, rate, duration_s + early)
    done = single_server(at, rng.exponential(load / rate, len(at)))
    kept = at >= early
    return records_of(at[kept] - early, (done - at)[kept])


def mm1_quantile(load: float, rate: float, p: float) -> float:
    return -math.log(1 - p) / (rate / load - rate)


def closed_loop(rng: np.random.Generator, law: Law, users: int = 20, duration_s: float = 30) -> Records:
    """Return a closed loop on a server that answers all requests at the same time."""
    count = int(duration_s / law.mean * 1.2) + 50
    latency = law.draw(rng, users * count).reshape(users, count)
    done = np.cumsum(latency, axis=1)
    return _until(done - latency, latency, duration_s)


def stalled_open(rng: np.random.Generator, stalls: Floats, length_s: float, rate: float, duration_s: float) -> Records:
    """Return an open loop on a fast server that does nothing for `length_s` from each of the times of `stalls`."""
    at = poisson_times(rng, rate, duration_s)
    service = rng.exponential(0.002, len(at))
    return records_of(at, _resumed(at, stalls, length_s) + service - at)


def stalled_closed(rng: np.random.Generator, stalls: Floats, length_s: float, users: int, duration_s: float) -> Records:
    """Return a closed loop on the same server."""
    think_s = 0.008
    latency = rng.exponential(0.002, (int(duration_s / think_s) + 1, users)).T + think_s
    begun = np.cumsum(latency, axis=1) - latency
    for user in range(users):
        for stall in stalls:
            first = int(np.searchsorted(begun[user], stall))
            if first < begun.shape[1] and (wait_s := stall + length_s - begun[user, first]) > 0:
                latency[user, first] += wait_s
                begun[user, first + 1 :] += wait_s
    return _until(begun, latency, duration_s)


def drifting(rng: np.random.Generator, law: Law, growth: float, rate: float = 200, duration_s: float = 60) -> Records:
    """Return an open loop on a server whose latency grows linearly, by a share over the run."""
    at = poisson_times(rng, rate, duration_s)
    return records_of(at, law.draw(rng, len(at)) * (1 + growth * at / duration_s))


def warming(rng: np.random.Generator, law: Law, warm_s: float, rate: float = 200, duration_s: float = 60) -> Records:
    """Return an open loop on a server whose latency decays from thrice its final value with a time constant."""
    at = poisson_times(rng, rate, duration_s)
    return records_of(at, law.draw(rng, len(at)) * (1 + 2 * np.exp(-at / (warm_s / 4))))


def restarted(rng: np.random.Generator, law: Law, duration_s: float = 30) -> Records:
    """Return an open loop on a server that refuses connections for three seconds."""
    at = poisson_times(rng, 200, duration_s)
    begin = rng.uniform(5, duration_s - 10)
    away = (at > begin) & (at < begin + 3)
    latency = np.where(away, 0.0005, law.draw(rng, len(at)))
    return records_of(at, latency, np.where(away, RequestOutcome.CONNECTION_ERROR, RequestOutcome.OK))


def saturated_client(rng: np.random.Generator, law: Law, rate: float = 200, duration_s: float = 30) -> Records:
    """Return an open loop of a client that needs 1.05 times the time it has for each request."""
    at = poisson_times(rng, rate, duration_s)
    sent = single_server(at, np.full(len(at), 1.05 / rate))
    return records_of(at, sent - at + law.draw(rng, len(at)), lag_s=sent - at)


def health_of(records: Records, cpu_ratio: float) -> ClientHealth:
    """Return the health of a client with the lag of the records."""
    lag = (records["sent_ns"] - records["intended_ns"]) * 1e-9 + 20e-6
    return ClientHealth(
        processes=1,
        cpu_ratio=cpu_ratio,
        cpu_cores=cpu_ratio,
        send_lag_p50_s=float(np.percentile(lag, 50)),
        send_lag_p99_s=float(np.percentile(lag, 99)),
        loop_lag_max_s=float(lag.max()),
        gc_pauses=0,
        gc_pause_max_s=0.0,
        steal_ratio=0.0,
        throttled_s=0.0,
    )


def _resumed(at: Floats, stalls: Floats, length_s: float) -> Floats:
    """Return when the server begins with requests that arrive at times, those in a stall at its end."""
    index = np.searchsorted(stalls, at, side="right") - 1
    last = np.where(index >= 0, stalls[np.maximum(index, 0)], -np.inf)
    return np.where(at < last + length_s, last + length_s, at)


def _until(begun: Floats, latency: Floats, duration_s: float) -> Records:
    records = records_of(begun.ravel(), latency.ravel())
    end = records["intended_ns"].min() + round(duration_s * 1e9)
    kept = records[records["intended_ns"] < end]
    late = kept["done_ns"] > end
    kept["outcome"][late] = RequestOutcome.UNFINISHED
    kept["done_ns"][late] = end
    return kept
