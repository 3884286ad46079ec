"""What the shipped alerts depend on, the options of `conch rules`: their thresholds, and the scrape jobs of Conch."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import Any

from conch.base.command_line.flag_values import value_kind
from conch.base.command_line.flags import flag_field
from conch.operate.monitoring.rules.known_metrics import MAX_CELSIUS

# A regular expression, of servers and exporters.
DEFAULT_JOBS = "conch|triton|gpu-exporter"


# Unit → the value is above, is below, description.
_RANGES = {
    "share": (0, 1, "a share between 0 and 1, e.g. 0.999"),
    "ratio": (0, inf, "a ratio above 0, e.g. 1.5"),
    "seconds": (0, inf, "a positive number of seconds, e.g. 0.5"),
    "count": (0, inf, "a positive count, e.g. 10"),
    "celsius": (0, MAX_CELSIUS, f"a temperature between 0 and {MAX_CELSIUS} °C, e.g. 85"),
}


def threshold(unit: str) -> Callable[[str], float]:
    """Return the type of a flag whose value has a unit. It raises ArgumentTypeError with the range and the remedy."""
    low, high, description = _RANGES[unit]

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = nan
        if not low < value < high:
            raise ArgumentTypeError(f"{repr(text) if isnan(value) else f'{value:g}'} is not {description}")
        return value

    return read


def _option(default: float, unit: str, text: str) -> Any:
    kind = value_kind(unit.upper(), threshold(unit))
    return flag_field(default, "thresholds", f"{text} (default: {default:g})", kind)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What is too much. Durations are in seconds, shares between 0 and 1."""

    queue_time: float = _option(0.1, "seconds", "mean time of a request in the queue")
    oldest_request: float = _option(10, "seconds", "age of the oldest request in the queue")
    queue_compute_ratio: float = _option(1, "ratio", "queue time divided by compute time")
    failure_ratio: float = _option(0.05, "share", "failed requests of one reason")
    objective: float = _option(0.999, "share", "service level objective: requests that succeed in 30 days")
    p99: float = _option(1, "seconds", "99th percentile of the request duration")
    utilization: float = _option(0.95, "share", "predicted utilization of instances that is an overload")
    scale_up: float = _option(60, "seconds", "time to start a replica, added to the measured load time of models")
    restarts: float = _option(2, "count", "process restarts in 10 minutes")
    unready: float = _option(120, "seconds", "time that a model may be unready")
    kv_cache: float = _option(0.9, "share", "KV cache in use")
    waiting_requests: float = _option(10, "count", "requests that wait in an engine")
    ttft: float = _option(2, "seconds", "95th percentile of the time to first token")
    gpu_temperature: float = _option(80, "celsius", "temperature of an accelerator")
    gpu_idle: float = _option(0.3, "share", "utilization of an accelerator that counts as idle")
    gpu_idle_time: float = _option(3600, "seconds", "time after which an idle accelerator is reported")
    gpu_memory: float = _option(0.95, "share", "memory of an accelerator in use")
