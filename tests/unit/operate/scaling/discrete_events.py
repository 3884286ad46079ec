"""A discrete-event simulation of replicas with queues: the oracle of the fluid model."""

from bisect import insort
from collections import deque
from heapq import heapreplace
from math import log1p, sqrt

import numpy as np
from numpy.typing import NDArray

from conch.operate.scaling.simulation.queue_model import ServiceModel


def simulate_events(
    rates: NDArray[np.float64], replicas: int, service: ServiceModel, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the arrival times and latencies of all requests; each replica gets a random share of the arrivals."""
    random = np.random.default_rng(seed)
    counts = random.poisson(rates)
    arrivals = np.sort(np.repeat(np.arange(len(rates)), counts) + random.random(int(counts.sum())))
    times_s, shares = service.distribution
    times = random.choice(times_s, len(arrivals), p=shares)
    chosen = random.integers(0, replicas, len(arrivals))
    latencies = np.empty(len(arrivals))
    for replica in range(replicas):
        free = deque([0.0] * service.servers)  # when servers become free, ascending
        for index in np.nonzero(chosen == replica)[0]:
            start = max(free.popleft(), float(arrivals[index]))
            ordered = list(free)
            insort(ordered, start + float(times[index]))
            free = deque(ordered)
            latencies[index] = start + times[index] - arrivals[index]
    return arrivals, latencies


def settled_latencies(servers: int, utilization: float, variation: float, count: int, seed: int) -> NDArray[np.float64]:
    """Return latencies of requests in a queue in equilibrium: Poisson arrivals, lognormal times of mean 1."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / (utilization * servers), count))
    squared = log1p(variation * variation)
    times = np.ones(count) if not variation else random.lognormal(-squared / 2, sqrt(squared), count)
    if servers == 1 or not variation:  # servers take turns, each a queue of Lindley's recursion
        turns = times.reshape(-1, servers)
        served = np.cumsum(turns, axis=0)
        starts = np.maximum.accumulate(arrivals.reshape(-1, servers) - served + turns, axis=0)
        return ((served + starts).ravel() - arrivals)[count // 10 :]
    free = [0.0] * servers  # a heap: when servers become free
    ends = np.empty(count)
    for index, (arrived, time) in enumerate(zip(arrivals.tolist(), times.tolist(), strict=True)):
        ends[index] = end = max(free[0], arrived) + time
        heapreplace(free, end)
    return (ends - arrivals)[count // 10 :]
