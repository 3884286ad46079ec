"""The figures of a measurement by name, as comparisons and conditions of a gate use them."""

import re
from collections.abc import Callable

from conch.bench.measurement import Estimate, Measurement, TimeDistribution
from conch.bench.statistics.quantile_functions import DEFAULT_LEVEL, proportion_interval
from conch.bench.statistics.time_distribution import percentile_key

ERROR_RATIO = "error_ratio"
# Other names that conditions may use.
_ALIASES = {
    "errors": ERROR_RATIO,
    "ttft": "ttft_p50",
    "itl": "itl_p50",
    "latency": "p50",
    "output_tokens": "output_rate",
    "req/s": "throughput",
}
_RATES: dict[str, Callable[[Measurement], Estimate | None]] = {
    "throughput": lambda measured: measured.throughput,
    "goodput": lambda measured: measured.goodput,
    "goodput_ratio": lambda measured: measured.goodput_ratio,
    "output_rate": lambda measured: measured.tokens.output_rate if measured.tokens else None,
    "input_rate": lambda measured: measured.tokens.input_rate if measured.tokens else None,
}
_TIMES: dict[str, Callable[[Measurement], TimeDistribution | None]] = {
    "": lambda measured: measured.latency,
    "service": lambda measured: measured.service_latency,
    "ttft": lambda measured: measured.tokens.first_token if measured.tokens else None,
    "itl": lambda measured: measured.tokens.inter_token if measured.tokens else None,
}
_TIME = re.compile(r"(?:(ttft|itl|service)_)?(mean|max|p(\d{1,2}(?:\.\d+)?))")
_FAILURES = ("client_error", "rejected", "server_error", "connection_error", "timeout", "wrong_answer", "unfinished")
_HEADLINES = ("throughput", "p50", "p90", "p99", "mean", "output_rate", "ttft_p50", "ttft_p99", "itl_p50", "itl_p99")


def quantity_name(text: str) -> str:
    """Return the name of a quantity that a user writes. Raises ValueError."""
    name = text.strip().lower().replace(" ", "_").replace("-", "_")
    name = _ALIASES.get(name, name)
    if name in _RATES or name == ERROR_RATIO or _TIME.fullmatch(name):
        return name
    raise ValueError(
        f"'{text.strip()}' is not a quantity; expected p50, p99 or another percentile, mean, max, throughput, goodput, "
        "output_rate, errors, ttft, itl, or with a percentile ttft_p99, itl_p99"
    )


def is_time(name: str) -> bool:
    """Return whether a quantity is in seconds."""
    return _TIME.fullmatch(name) is not None


def higher_is_better(name: str) -> bool:
    """Return whether more of a quantity is better."""
    return name in _RATES


def value_of(name: str, measured: Measurement) -> Estimate | None:
    """Return a quantity of a measurement; None if it was not measured."""
    if name == ERROR_RATIO:
        return error_ratio(measured)
    if name in _RATES:
        return _RATES[name](measured)
    match = _TIME.fullmatch(name)
    if match is None:
        raise ValueError(f"'{name}' is not a quantity")
    times = _TIMES[match[1] or ""](measured)
    if times is None:
        return None
    if match[2] == "mean":
        return times.mean
    if match[2] == "max":
        return Estimate(times.max)
    return times.percentiles.get(percentile_key(float(match[3])))


def error_ratio(measured: Measurement) -> Estimate | None:
    """Return the share of requests that failed, of those that the client did not cancel; None without a request."""
    failed = sum(measured.outcomes.get(each, 0) for each in _FAILURES)
    total = failed + measured.outcomes.get("ok", 0)
    if not total:
        return None
    return Estimate(failed / total, *proportion_interval(failed / total, total, 1 - DEFAULT_LEVEL))


def headline_quantities(measured: Measurement) -> list[str]:
    """Return the names of the quantities of a measurement that a comparison shows."""
    names = [name for name in _HEADLINES if value_of(name, measured) is not None]
    return [*names, *(["goodput"] if measured.goodput is not None else []), ERROR_RATIO]
