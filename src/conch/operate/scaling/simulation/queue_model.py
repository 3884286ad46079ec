"""A replica as a queue: what it can do, how many requests it holds, and which share it answers too late.

The queue is a fluid: pointwise stationary approximation, solved implicitly. The number of requests in a replica, x,
follows dx/dt = arrivals - capacity · ρ(x), where ρ(x) is the utilization at which a queue with Poisson arrivals in
equilibrium holds x requests. Below saturation it settles at the mean of that queue (Erlang's C formula, and the
residuals of service times); above, x grows by the excess. Assumptions: requests are spread evenly over the replicas,
also those that wait (a new replica takes its share at once); arrivals within a second are Poisson.

Requests that have to wait (Erlang's C formula says how many) wait until the first of the busy servers is free, then
for those ahead of them. With equilibrium residuals of the service times this is a geometric sum, of which a Fourier
transform gives the distribution: the approximation of Tijms, van Hoorn and Federgruen for M/G/c, exact for M/M/c and
M/G/1. tests/unit/operate/scaling/test_queue_model.py compares it with both and with a discrete-event simulation.
"""

from dataclasses import dataclass
from math import erfc, inf, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

# Bins of equal shares for the body of a distribution, and of equal ratios for its tail.
_RESIDUALS = 20_001  # points of the integral over a residual
_BODY, _TAIL, _TAIL_BEGINS, _TAIL_ENDS = 180, 320, 0.1, 1e-8
_POINTS = 1500
_MAX_UTILIZATION = 0.9995
# Above this the mean of the equilibrium is reached too slowly to matter; what is waiting is then a backlog.
MAX_SETTLED = 0.98
_UTILIZATIONS = 99
_LIMITS = 257  # points between no time and the objective
_LENGTHS = 9  # of executions, from one request to the largest batch
_MIN_STEPS, _MAX_STEPS = 1 << 10, 1 << 14  # of the grid of waits
_STEPS_PER_SERVICE = 8
_ALIASING = 1e-8


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """A replica with `servers` that each execute one batch, or generate one sequence, at a time.

    `times_s` are times of an execution of one request, and `shares` how likely each is (default: equally). An execution
    of b requests takes 1 + (b - 1) · `batch_cost` times as long: 0 is a perfect batch, 1 no gain. `first_token_s` and
    `kv_per_running` (share of the KV cache) are of language models.
    """

    times_s: NDArray[np.float64]
    servers: int = 1
    max_batch: int = 1
    batch_cost: float = 1.0
    first_token_s: float = 0.0
    kv_per_running: float = 0.0
    shares: NDArray[np.float64] | None = None

    @property
    def distribution(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The times of an execution of one request, ascending, and how likely each is."""
        order = np.argsort(self.times_s)
        shares = np.ones(len(order)) if self.shares is None else self.shares[order]
        return self.times_s[order], shares / shares.sum()

    def residual(self, times_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability that an execution in progress ends within times: of the equilibrium residual."""
        known_s, shares = self.distribution
        # The integral of the survival function is linear between the known times.
        survival = np.append(1 - np.cumsum(shares)[:-1], 0.0)
        integral = np.cumsum(np.diff(known_s, prepend=0) * np.append(1.0, survival[:-1]))
        part = np.interp(times_s, np.append(0.0, known_s), np.append(0.0, integral)) / integral[-1]
        return np.asarray(np.minimum(part, 1.0), dtype=np.float64)

    @property
    def mean_s(self) -> float:
        """The mean time of an execution of one request."""
        return float(np.average(self.times_s, weights=self.shares))

    @property
    def squared_variation(self) -> float:
        """The squared coefficient of variation of the times."""
        mean = self.mean_s
        return float(np.average((self.times_s - mean) ** 2, weights=self.shares) / (mean * mean))

    @property
    def independence(self) -> float:
        """How independently busy servers end, from 0 to 1: 1 for exponential times, less for constant ones.

        Few servers with constant times end one after the other as they began. The first is then free later than of
        independent ones, nearly as if they were one faster server. The formula is fitted to simulated queues.
        """
        constant = 1 - 0.8 * pow(float(self.servers), -0.45)
        return float(constant + (1 - constant) * min(self.squared_variation, 1.0))

    @property
    def mean_delay(self) -> tuple[float, float]:
        """The mean wait for the first free server, and for each request ahead, in seconds."""
        times_s = np.linspace(0, float(self.times_s.max()), _RESIDUALS)
        soonest_s = float(np.trapezoid((1 - self.residual(times_s)) ** self.servers, times_s))
        ahead_s = self.mean_s * (1 + self.squared_variation) / 2 / self.servers
        return self.independence * soonest_s + (1 - self.independence) * ahead_s, ahead_s

    def length(self, batch: float) -> float:
        """Return how many times as long as of one request an execution of a batch takes."""
        return 1 + (batch - 1) * self.batch_cost

    def batch_s(self, batch: float) -> float:
        """Return the mean time of an execution of a batch."""
        return self.mean_s * self.length(batch)

    @property
    def capacity(self) -> float:
        """The most requests per second of a replica."""
        return self.servers * self.max_batch / self.batch_s(self.max_batch)


def constant_service(mean_s: float, servers: int = 1, variation: float = 0.0) -> ServiceModel:
    """Return a service of a mean time and a coefficient of variation: lognormal, or constant with 0."""
    times_s, shares = lognormal(mean_s, variation)
    return ServiceModel(times_s, servers, shares=shares)


def lognormal(mean: float, variation: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return values of a lognormal distribution and how likely each is, with exactly this mean.

    Each value is the mean of a bin. The bins narrow towards the tail, of which objectives of 99 % and more depend.
    """
    if variation <= 0:
        return np.array([mean]), np.ones(1)
    sigma = float(np.sqrt(np.log1p(variation * variation)))
    body = np.linspace(1, _TAIL_BEGINS, _BODY, endpoint=False)
    survival = np.append(np.append(body, np.geomspace(_TAIL_BEGINS, _TAIL_ENDS, _TAIL)), 0.0)
    edges = np.array([_normal_edge(float(share)) for share in survival])
    # The part of the mean below each edge is a normal distribution, moved by sigma.
    below = np.array([0.5 * erfc(-(edge - sigma) / sqrt(2)) for edge in edges])
    shares = -np.diff(survival)
    return mean * np.diff(below) / shares, shares


def language_model(
    prompt_tokens: float,
    output_tokens: float,
    prefill_rate: float,
    decode_rate: float,
    slots: int,
    kv_tokens: float = 0.0,
) -> ServiceModel:
    """Return a replica that generates `slots` sequences at a time: tokens per second of the prefill and per sequence.

    The lengths of outputs vary. A running sequence holds its prompt and half of its output in the KV cache on average.
    """
    prefill_s = prompt_tokens / prefill_rate
    times, shares = lognormal(output_tokens / decode_rate, 1.0)
    held = prompt_tokens + output_tokens / 2
    per_running = held / kv_tokens if kv_tokens > 0 else 1 / slots
    return ServiceModel(prefill_s + times, slots, first_token_s=prefill_s, kv_per_running=per_running, shares=shares)


def _normal_edge(survival: float) -> float:
    """Return where the standard normal distribution has a survival probability."""
    if survival in (0.0, 1.0):
        return inf if survival == 0 else -inf
    return -NormalDist().inv_cdf(survival)


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
        shares = np.zeros(len(left_s))
        for index, weight in _corners(
            (self._lengths, length), (self._utilizations, utilization), (self._limits_s, np.maximum(left_s, 0))
        ):
            shares += weight * self._table[index]
        return np.where(left_s <= 0, 1.0, np.clip(shares, 0.0, 1.0))


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
    last, columns = waits.shape[1] - 1, len(limits_s)
    left_s = limits_s[None, :] - times_s[:, None]
    index = np.clip(left_s / step_s, 0, last).astype(np.int64) * columns + np.arange(columns)
    weights = np.where(left_s < 0, 0.0, shares[:, None])
    # Which share of the service times leaves each wait, by limit.
    left = np.bincount(index.ravel(), weights.ravel(), (last + 1) * columns).reshape(last + 1, columns)
    return np.asarray(waits @ left + (shares[:, None] - weights).sum(axis=0), dtype=np.float64)


def _corners(
    *axes: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> list[tuple[tuple[NDArray[np.int64], ...], NDArray[np.float64]]]:
    """Return indices and weights of a linear interpolation between the points of a table."""
    corners: list[tuple[tuple[NDArray[np.int64], ...], NDArray[np.float64]]] = [((), np.ones(len(axes[0][1])))]
    for points, values in axes:
        if len(points) == 1:
            corners = [((*index, np.zeros(len(values), np.int64)), weight) for index, weight in corners]
            continue
        place = np.clip((values - points[0]) / (points[1] - points[0]), 0, len(points) - 1)
        low = np.minimum(place.astype(np.int64), len(points) - 2)
        part = place - low
        corners = [
            ((*index, low + side), weight * (part if side else 1 - part))
            for index, weight in corners
            for side in (0, 1)
        ]
    return corners
