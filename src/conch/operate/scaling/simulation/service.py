"""What a replica can do: instances, time of an execution, batches; or slots and token rates of a language model."""

from dataclasses import dataclass
from math import erfc, inf, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

# Bins of equal shares for the body of a distribution, and of equal ratios for its tail.
_RESIDUALS = 20_001  # points of the integral over a residual
_BODY, _TAIL, _TAIL_BEGINS, _TAIL_ENDS = 180, 320, 0.1, 1e-8


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
