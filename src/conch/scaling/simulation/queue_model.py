"""The queue of a replica as a fluid: pointwise stationary approximation, solved implicitly.

The number of requests in a replica, x, follows dx/dt = arrivals - capacity · ρ(x), where ρ(x) is the utilization at
which a queue with Poisson arrivals in equilibrium holds x requests. Below saturation it settles at the mean of that
queue (Erlang's C formula, with the correction of Allen and Cunneen for the variation of service times); above, x grows
by the excess. Assumptions: requests are spread evenly over the replicas, also those that wait (a new replica takes its
share at once); arrivals within a second are Poisson. tests/unit/scaling/test_queue_model.py compares it with a
discrete-event simulation.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conch.scaling.simulation.service import ServiceModel

_POINTS = 1500
_MAX_UTILIZATION = 0.9995
# Above this the mean of the equilibrium is reached too slowly to matter; what is waiting is then a backlog.
_MAX_SETTLED = 0.98


@dataclass(frozen=True, slots=True)
class Waits:
    """The time before an execution: `backlog_s` for all, and for the share `delayed` an exponential time more."""

    backlog_s: NDArray[np.float64]
    delayed: NDArray[np.float64]
    mean_delay_s: NDArray[np.float64]  # of those delayed

    def shares_above(self, limits_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability that a wait is longer than a limit, for each time."""
        left = limits_s - self.backlog_s
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            tail = self.delayed * np.exp(-left / np.maximum(self.mean_delay_s, 1e-12))
        return np.where(left <= 0, 1.0, np.minimum(tail, 1.0))


class QueueModel:
    """Tables of one service, for steps of one length."""

    def __init__(self, service: ServiceModel, step_s: float = 1.0) -> None:
        self.service, self._step_s = service, step_s
        self.capacity = service.capacity
        shares = np.linspace(0, 1, _POINTS)
        self._utilization = _MAX_UTILIZATION * (1 - (1 - shares) ** 2)
        self._delayed = erlang_c(self._utilization, service.servers)
        correction = (1 + service.squared_variation) / 2
        waiting = self._delayed * self._utilization / (1 - self._utilization) * correction
        self._inside = service.servers * self._utilization + waiting
        self._after_step = self._inside + step_s * self.capacity * self._utilization

    def step(self, inside: float, arrival_rate: float) -> tuple[float, float, float]:
        """Return requests in a replica after a step, those completed in it, and the utilization."""
        before = inside + self._step_s * arrival_rate
        if before >= self._after_step[-1]:
            completed = self._step_s * self.capacity
            return before - completed, completed, 1.0
        utilization = float(np.interp(before, self._after_step, self._utilization))
        completed = self._step_s * self.capacity * utilization
        return max(before - completed, 0.0), completed, utilization

    def waits(self, inside: NDArray[np.float64], arrival_rates: NDArray[np.float64]) -> Waits:
        """Return the waits of requests that arrive at replicas that hold `inside`."""
        arriving = np.minimum(arrival_rates / self.capacity, _MAX_SETTLED)
        settled = np.interp(arriving, self._utilization, self._inside)
        backlog = np.maximum(inside - settled, 0.0)
        building = np.interp(inside, self._inside, self._utilization)
        effective = np.minimum(arriving, building)
        delayed = np.interp(effective, self._utilization, self._delayed)
        correction = (1 + self.service.squared_variation) / 2
        mean_delay = correction / (self.capacity * (1 - effective))
        return Waits(backlog / self.capacity, delayed, mean_delay)


def erlang_c(utilization: NDArray[np.float64], servers: int) -> NDArray[np.float64]:
    """Return the probability that a request has to wait for one of the servers."""
    offered = utilization * servers
    blocked = np.ones_like(utilization)
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return np.asarray(blocked / (1 - utilization * (1 - blocked)), dtype=np.float64)
