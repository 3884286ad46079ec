"""The queue of a replica as a fluid: pointwise stationary approximation, solved implicitly.

The number of requests in a replica, x, follows dx/dt = arrivals - capacity · ρ(x), where ρ(x) is the utilization at
which a queue with Poisson arrivals in equilibrium holds x requests. Below saturation it settles at the mean of that
queue (Erlang's C formula, and the residuals of service times; see latency.py); above, x grows by the excess.
Assumptions: requests are spread evenly over the replicas, also those that wait (a new replica takes its share at once);
arrivals within a second are Poisson. tests/unit/operate/scaling/test_queue_model.py compares it with a discrete-event
simulation.
"""

import numpy as np
from numpy.typing import NDArray

from conch.operate.scaling.simulation.service import ServiceModel

_POINTS = 1500
_MAX_UTILIZATION = 0.9995
# Above this the mean of the equilibrium is reached too slowly to matter; what is waiting is then a backlog.
MAX_SETTLED = 0.98


class QueueModel:
    """Tables of one service, for steps of one length."""

    def __init__(self, service: ServiceModel, step_s: float = 1.0) -> None:
        self.service, self._step_s = service, step_s
        self.capacity = service.capacity
        shares = np.linspace(0, 1, _POINTS)
        self._utilization = _MAX_UTILIZATION * (1 - (1 - shares) ** 2)
        delayed = erlang_c(self._utilization, service.servers)
        first_s, ahead_s = service.mean_delay
        delay_s = first_s + ahead_s * self._utilization / (1 - self._utilization)
        waiting = delayed * self._utilization * delay_s * service.servers / service.mean_s
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

    def backlog(
        self, inside: NDArray[np.float64], arrival_rates: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the time that all requests wait which arrive at replicas that hold `inside`, and the utilization.

        The utilization is that of the queue in equilibrium behind which they wait besides.
        """
        arriving = np.minimum(arrival_rates / self.capacity, MAX_SETTLED)
        settled = np.interp(arriving, self._utilization, self._inside)
        building = np.interp(inside, self._inside, self._utilization)
        return np.maximum(inside - settled, 0.0) / self.capacity, np.minimum(arriving, building)


def erlang_c(utilization: NDArray[np.float64], servers: int) -> NDArray[np.float64]:
    """Return the probability that a request has to wait for one of the servers."""
    offered = utilization * servers
    blocked = np.ones_like(utilization)
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return np.asarray(blocked / (1 - utilization * (1 - blocked)), dtype=np.float64)
