"""What can be compared between two measurements, by the names that conditions use."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from conch.measure.bench.measurement import Estimate, Measurement, TimeDistribution

ERROR_RATIO = "error_ratio"
_Z = NormalDist().inv_cdf(0.975)

# Cancelled by the client, or in flight at the end.
_NO_ERRORS = ("ok", "cancelled", "unfinished")


def errors_of(measurement: Measurement) -> int:
    """Return how many requests failed. Those cancelled by the client or unfinished at the end did not."""
    return sum(count for name, count in measurement.outcomes.items() if name not in _NO_ERRORS)


@dataclass(frozen=True, slots=True)
class ComparedQuantity:
    """A quantity of a level. `shown`: in the table without a condition that names it."""

    name: str
    read: Callable[[Measurement], Estimate | None]
    higher_is_better: bool = False
    shown: bool = False
    is_ratio: bool = False  # compared by its difference

    @property
    def is_time(self) -> bool:
        """Whether it is in seconds; the others are ratios or rates, of which more is better."""
        return not self.is_ratio and not self.higher_is_better


def _percentile(
    of: Callable[[Measurement], TimeDistribution | None], name: str
) -> Callable[[Measurement], Estimate | None]:
    def read(measurement: Measurement) -> Estimate | None:
        distribution = of(measurement)
        return distribution.percentiles.get(name) if distribution is not None else None

    return read


def _mean(of: Callable[[Measurement], TimeDistribution | None]) -> Callable[[Measurement], Estimate | None]:
    def read(measurement: Measurement) -> Estimate | None:
        distribution = of(measurement)
        return distribution.mean if distribution is not None else None

    return read


def _latency(measurement: Measurement) -> TimeDistribution | None:
    return measurement.latency


def _first_token(measurement: Measurement) -> TimeDistribution | None:
    return measurement.tokens.first_token if measurement.tokens else None


def _inter_token(measurement: Measurement) -> TimeDistribution | None:
    return measurement.tokens.inter_token if measurement.tokens else None


def _first_response(measurement: Measurement) -> TimeDistribution | None:
    return measurement.responses.first if measurement.responses else None


def _response_gap(measurement: Measurement) -> TimeDistribution | None:
    return measurement.responses.gap if measurement.responses else None


def _error_ratio(measurement: Measurement) -> Estimate | None:
    """Return the share of failed requests with Wilson's interval."""
    count = measurement.requests
    if not count:
        return None
    share = min(errors_of(measurement) / count, 1.0)
    scale = 1 + _Z**2 / count
    center = (share + _Z**2 / (2 * count)) / scale
    half = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2)) / scale
    return Estimate(share, min(max(center - half, 0.0), share), max(min(center + half, 1.0), share))


def _times(
    prefix: str, of: Callable[[Measurement], TimeDistribution | None], shown: tuple[str, ...]
) -> list[ComparedQuantity]:
    names = ("50", "90", "95", "99", "99.9")
    return [ComparedQuantity(f"{prefix}mean", _mean(of))] + [
        ComparedQuantity(f"{prefix}p{name}", _percentile(of, name), shown=name in shown) for name in names
    ]


_ALL = (
    ComparedQuantity("throughput", lambda measurement: measurement.throughput, higher_is_better=True, shown=True),
    ComparedQuantity(
        "output_rate",
        lambda measurement: measurement.tokens.output_rate if measurement.tokens else None,
        higher_is_better=True,
        shown=True,
    ),
    ComparedQuantity(
        "response_rate",
        lambda measurement: measurement.responses.rate if measurement.responses else None,
        higher_is_better=True,
        shown=True,
    ),
    ComparedQuantity("goodput", lambda measurement: measurement.goodput, higher_is_better=True, shown=True),
    *_times("", _latency, ("50", "95", "99")),
    *_times("ttft_", _first_token, ("50", "99")),
    *_times("itl_", _inter_token, ("50", "99")),
    *_times("ttfr_", _first_response, ("50", "99")),
    *_times("gap_", _response_gap, ("50", "99")),
    ComparedQuantity(ERROR_RATIO, _error_ratio, is_ratio=True),
)
QUANTITIES = {quantity.name: quantity for quantity in _ALL}
