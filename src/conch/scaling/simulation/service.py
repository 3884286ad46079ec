"""What a replica can do: instances, time of an execution, batches; or slots and token rates of a language model."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_QUANTILES = 24


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """A replica with `servers` that each execute one batch, or generate one sequence, at a time.

    `times_s` are equally likely times of an execution of one request. An execution of b requests takes
    1 + (b - 1) · `batch_cost` times as long: 0 is a perfect batch, 1 no gain. `first_token_s` and `kv_per_running`
    (share of the KV cache) are of language models.
    """

    times_s: NDArray[np.float64]
    servers: int = 1
    max_batch: int = 1
    batch_cost: float = 1.0
    first_token_s: float = 0.0
    kv_per_running: float = 0.0

    @property
    def mean_s(self) -> float:
        """The mean time of an execution of one request."""
        return float(self.times_s.mean())

    @property
    def squared_variation(self) -> float:
        """The squared coefficient of variation of the times."""
        mean = self.mean_s
        return float(self.times_s.var() / (mean * mean))

    def batch_s(self, batch: float) -> float:
        """Return the mean time of an execution of a batch."""
        return self.mean_s * (1 + (batch - 1) * self.batch_cost)

    @property
    def capacity(self) -> float:
        """The most requests per second of a replica."""
        return self.servers * self.max_batch / self.batch_s(self.max_batch)


def constant_service(mean_s: float, servers: int = 1, variation: float = 0.0) -> ServiceModel:
    """Return a service of a mean time and a coefficient of variation: lognormal, or constant with 0."""
    return ServiceModel(lognormal(mean_s, variation), servers)


def lognormal(mean: float, variation: float) -> NDArray[np.float64]:
    """Return equally likely values of a lognormal distribution, with exactly this mean."""
    if variation <= 0:
        return np.array([mean])
    sigma = float(np.sqrt(np.log1p(variation * variation)))
    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    values = np.exp(sigma * _normal_quantiles(shares))
    return np.asarray(values * (mean / values.mean()), dtype=np.float64)


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
    times = prefill_s + lognormal(output_tokens / decode_rate, 1.0)
    held = prompt_tokens + output_tokens / 2
    return ServiceModel(
        times, slots, first_token_s=prefill_s, kv_per_running=held / kv_tokens if kv_tokens > 0 else 1 / slots
    )


def _normal_quantiles(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    from statistics import NormalDist

    return np.array([NormalDist().inv_cdf(float(each)) for each in shares])
