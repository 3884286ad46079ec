"""A discrete-event simulation of replicas with queues: the oracle of the fluid model."""

from bisect import insort
from collections import deque

import numpy as np
from numpy.typing import NDArray

from conch.scaling.simulation.service import ServiceModel


def simulate_events(
    rates: NDArray[np.float64], replicas: int, service: ServiceModel, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the arrival times and latencies of all requests; each replica gets a random share of the arrivals."""
    random = np.random.default_rng(seed)
    counts = random.poisson(rates)
    arrivals = np.sort(np.repeat(np.arange(len(rates)), counts) + random.random(int(counts.sum())))
    times = random.choice(service.times_s, len(arrivals))
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
