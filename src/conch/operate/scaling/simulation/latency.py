"""The share of requests that are answered too late: the tail of wait plus service in a queue of several servers.

Requests that have to wait (Erlang's C formula says how many) wait until the first of the busy servers is free, then
for those ahead of them. With equilibrium residuals of the service times this is a geometric sum, of which a Fourier
transform gives the distribution: the approximation of Tijms, van Hoorn and Federgruen for M/G/c, exact for M/M/c and
M/G/1. tests/unit/operate/scaling/test_queue_model.py compares it with both and with a discrete-event simulation.
"""

import numpy as np
from numpy.typing import NDArray

from conch.operate.scaling.simulation.queue_model import MAX_SETTLED, erlang_c
from conch.operate.scaling.simulation.service import ServiceModel

_UTILIZATIONS = 99
_LIMITS = 257  # points between no time and the objective
_LENGTHS = 9  # of executions, from one request to the largest batch
_MIN_STEPS, _MAX_STEPS = 1 << 10, 1 << 14  # of the grid of waits
_STEPS_PER_SERVICE = 8
_ALIASING = 1e-8
_CHUNK = 32  # times of an execution that are added up at once


class LateShares:
    """Table of P(wait + service > limit), for limits up to an objective."""

    def __init__(self, service: ServiceModel, objective_s: float, *, first_token: bool = False) -> None:
        self._objective_s = objective_s
        self._utilizations = np.linspace(0, MAX_SETTLED, _UTILIZATIONS)
        self._limits_s = np.linspace(0, objective_s, _LIMITS)
        longest = service.batch_s(service.max_batch) / service.mean_s
        self._lengths = np.linspace(1, longest, _LENGTHS if longest > 1 else 1)
        delayed = erlang_c(self._utilizations, service.servers)
        waits, step_s = _waits(service, self._utilizations, objective_s)
        # Larger batches shorten the queue by as much as they raise the capacity.
        step_s *= service.servers / (service.mean_s * service.capacity)
        times_s, shares = (np.array([service.first_token_s]), np.ones(1)) if first_token else service.distribution
        self._table = np.stack(
            [
                _late(waits * delayed[:, None], step_s, times_s * length, shares, self._limits_s)
                for length in self._lengths
            ]
        )

    def at(
        self, utilization: NDArray[np.float64], backlog_s: NDArray[np.float64], length: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the share of late requests at each time.

        `backlog_s` is waited by all; `length` is that of an execution, relative to one request.
        """
        left_s = self._objective_s - backlog_s
        found = np.zeros(len(left_s))
        for index, weight in _corners(
            (self._lengths, length), (self._utilizations, utilization), (self._limits_s, np.maximum(left_s, 0))
        ):
            found += weight * self._table[index]
        return np.where(left_s <= 0, 1.0, np.clip(found, 0.0, 1.0))


def _waits(
    service: ServiceModel, utilizations: NDArray[np.float64], horizon_s: float
) -> tuple[NDArray[np.float64], float]:
    """Return P(wait > k · step) of requests that have to wait, by utilization, and the step in seconds."""
    per_server_s = service.mean_s / service.servers
    steps = int(np.clip(_STEPS_PER_SERVICE * horizon_s / per_server_s, _MIN_STEPS, _MAX_STEPS))
    step_s = horizon_s / steps
    size = 4 * steps
    damping = _ALIASING ** (np.arange(size) / size)
    # The probability of the interval around each point, so that rounding does not move the mean.
    edges_s = np.maximum(np.arange(-1, steps) + 0.5, 0) * step_s
    ahead = np.fft.rfft(np.diff(service.residual(edges_s * service.servers)) * damping[:steps], size)
    soonest = np.fft.rfft(np.diff(1 - (1 - service.residual(edges_s)) ** service.servers) * damping[:steps], size)
    part = service.independence
    first = part * soonest + (1 - part) * ahead
    tails = []
    for utilization in utilizations:
        transform = (1 - utilization) * first / (1 - utilization * ahead)
        chances = np.fft.irfft(transform, size)[:steps] / damping[:steps]
        tails.append(np.clip(1 - np.cumsum(chances), 0.0, 1.0))
    return np.array(tails), step_s


def _late(
    waits: NDArray[np.float64],
    step_s: float,
    times_s: NDArray[np.float64],
    shares: NDArray[np.float64],
    limits_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return P(wait + service > limit), by utilization and limit."""
    late = np.zeros((len(waits), len(limits_s)))
    last = waits.shape[1] - 1
    for start in range(0, len(times_s), _CHUNK):
        left_s = limits_s[None, :] - times_s[start : start + _CHUNK, None]
        index = np.clip(left_s / step_s, 0, last).astype(np.int64)
        chunk = shares[start : start + _CHUNK]
        late += np.einsum("s,usl->ul", chunk, np.where(left_s < 0, 1.0, waits[:, index]))
    return late


def _corners(
    *axes: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> list[tuple[tuple[NDArray[np.int64], ...], NDArray[np.float64]]]:
    """Return indices and weights of a linear interpolation between the points of a table."""
    found: list[tuple[tuple[NDArray[np.int64], ...], NDArray[np.float64]]] = [((), np.ones(len(axes[0][1])))]
    for points, values in axes:
        if len(points) == 1:
            found = [((*index, np.zeros(len(values), np.int64)), weight) for index, weight in found]
            continue
        place = np.clip((values - points[0]) / (points[1] - points[0]), 0, len(points) - 1)
        low = np.minimum(place.astype(np.int64), len(points) - 2)
        part = place - low
        found = [
            ((*index, low + side), weight * (part if side else 1 - part)) for index, weight in found for side in (0, 1)
        ]
    return found
